"""Which allocator Arrow uses in a worker: jemalloc, which gives memory back that mimalloc keeps, at equal speed.

Arrow looks once, when it is loaded, so this module comes before all others in a worker. In a process that has loaded
Arrow already, such as the driver, it changes nothing.
"""

import os
import sys

if "pyarrow" not in sys.modules:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
