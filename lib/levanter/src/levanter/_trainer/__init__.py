"""The parts of :mod:`levanter.trainer`: what one step reports, how a failure is recorded, the stored program."""
