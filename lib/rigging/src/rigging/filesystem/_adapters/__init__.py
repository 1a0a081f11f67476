"""The only place in ``rigging.filesystem`` that loads fsspec, cloud libraries or system calls behind ctypes."""
