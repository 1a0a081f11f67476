"""Random-access datasets, mixtures, packing and the loader: the stream of examples as a function of the step number.

Nothing in the stack keeps a cursor. A dataset is a length and a pure map from index to item; shuffling, slicing and
mixing are maps between indices; the loader turns a step number into a range of indices. So the batch of step *s*
depends on configuration, seed and *s* alone, and resuming is asking for step *s*.
"""
