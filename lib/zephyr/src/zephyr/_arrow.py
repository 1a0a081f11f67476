"""Arrow's compute functions, which are generated at import time and therefore unknown to type checkers."""

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
