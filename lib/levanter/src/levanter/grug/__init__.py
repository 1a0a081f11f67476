"""Grug: a mixture-of-experts language model written out on raw arrays, to be copied and changed.

Everything is in three short files: ``router`` (quantile balancing), ``model`` (the forward pass), ``train`` (the step).
There are no named axes and no layers to subclass; where an array lies on the mesh is said by a ``PartitionSpec`` beside
its shape. A variant is a copy of ``model.py`` with the difference written into it.
"""
