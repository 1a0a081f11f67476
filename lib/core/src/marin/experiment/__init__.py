"""What an experiment file calls: one builder a stage, each returns a step.

The problem: an experiment file that spells out configs hides the experiment. The idea: builders take the choices that
define it, wire the paths, and leave everything else to the rooms. They import no room's heavy half: a plan of the whole
graph needs neither jax nor zephyr.
"""
