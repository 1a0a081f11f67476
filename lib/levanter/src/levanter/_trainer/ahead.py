"""Compiling the step while there is nothing to run it on yet.

A run starts with three things that do not need each other: the first state, the first batch, and the compiled step,
which needs only their shapes. Compiling takes the longest and XLA does it without Python's lock, so it has a thread.
JAX keeps what was compiled under the function and the shapes; the call of the step finds it there.
"""

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax

logger = logging.getLogger(__name__)


class CompileAhead:
    """One compilation in a thread.

    Example:
        >>> step, ahead = jax.jit(lambda x: x + 1), CompileAhead()
        >>> ahead.start(lambda: step.lower(jax.ShapeDtypeStruct((2,), "float32")))
        >>> ahead.wait()
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, lower: Callable[[], Any]) -> None:
        """Compile what ``lower()`` returns, a :class:`jax.stages.Lowered`; it is called in the thread.

        On a GPU nothing happens: XLA times kernels there while it compiles, and the device has to be idle for that.
        """
        if jax.default_backend() == "gpu":
            return
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(_compile, lower), name="levanter-compile", daemon=False
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the compilation, if there is one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


def _compile(lower: Callable[[], Any]) -> None:
    try:
        lower().compile()
    except Exception as error:  # thread boundary: the call of the step meets the same error where it can be handled
        logger.debug("compiling ahead failed: %r", error)
