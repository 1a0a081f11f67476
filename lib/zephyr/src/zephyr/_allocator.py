"""Which allocator Arrow uses in a worker: jemalloc, which gives memory back that mimalloc keeps, at equal speed.

Arrow looks once, when it is loaded, so a worker imports this module before all others that load it. In a process that
has loaded Arrow already, such as the driver, it changes nothing.
"""

import os
import sys
from typing import Final

if "pyarrow" not in sys.modules:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")

import pyarrow as pa

_DECAY_MS: Final = 50


def return_memory_soon() -> None:
    """Let freed memory go back within this time; Arrow's default is a second, which is many blocks."""
    if pa.default_memory_pool().backend_name == "jemalloc":
        pa.jemalloc_set_decay_ms(_DECAY_MS)
