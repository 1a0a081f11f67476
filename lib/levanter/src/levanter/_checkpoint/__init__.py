"""The parts of :mod:`levanter.checkpoint`: layout on disk, array input and output, policy, discovery."""
