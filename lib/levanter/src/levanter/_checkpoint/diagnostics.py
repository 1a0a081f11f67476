"""Watching a save from the side: how long, how much memory, and where every thread stands."""

import contextlib
import faulthandler
import gc
import logging
import sys
import threading
import tracemalloc
from collections.abc import Iterator

from rigging.memory import current_rss_bytes
from rigging.timing import Clock

from levanter._checkpoint.options import CheckpointDebugConfig

logger = logging.getLogger(__name__)
MIB = 1 << 20


def before_copy(config: CheckpointDebugConfig) -> None:
    """Call on the training thread, before a save copies anything."""
    if not config.enabled:
        return
    if config.tracemalloc_frames and not tracemalloc.is_tracing():
        tracemalloc.start(config.tracemalloc_frames)
    if config.force_gc_before_serialize:
        gc.collect()


@contextlib.contextmanager
def watched_save(config: CheckpointDebugConfig, path: str, clock: Clock) -> Iterator[None]:
    """Say what becomes of the save that runs in the block.

    Args:
        config: What to say; nothing unless enabled.
        path: The checkpoint being written.
        clock: Source of time.
    """
    if not config.enabled:
        yield
        return
    began = clock.monotonic()
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(config, path, clock, began, done), name="levanter-checkpoint-debug", daemon=True
    )
    watcher.start()
    _say(config, "saving %s: resident memory %d MiB", path, current_rss_bytes() // MIB)
    try:
        yield
    finally:
        done.set()
        watcher.join()
        seconds = clock.monotonic() - began
        _say(config, "saving %s ended after %.1f s: resident memory %d MiB", path, seconds, current_rss_bytes() // MIB)
        _name_allocations(config)


def _watch(config: CheckpointDebugConfig, path: str, clock: Clock, began: float, done: threading.Event) -> None:
    dump_at = config.dump_stacks_after
    next_line = config.log_interval
    while True:
        until = next_line if dump_at is None else min(next_line, dump_at)
        if clock.wait(done, max(0.0, began + until - clock.monotonic())):
            return
        elapsed = clock.monotonic() - began
        if dump_at is not None and elapsed >= dump_at:
            dump_at = None
            _say(config, "saving %s has run for %.1f s; the stacks of all threads follow", path, elapsed)
            faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        if elapsed >= next_line:
            next_line += config.log_interval
            rss = current_rss_bytes() // MIB
            _say(config, "saving %s has run for %.1f s: resident memory %d MiB", path, elapsed, rss)


def _name_allocations(config: CheckpointDebugConfig) -> None:
    if not tracemalloc.is_tracing():
        return
    largest = tracemalloc.take_snapshot().statistics("lineno")[: config.top_allocations]
    for site in largest:
        _say(config, "allocated: %d KiB in %d blocks at %s", site.size // 1024, site.count, site.traceback)


def _say(config: CheckpointDebugConfig, message: str, *values: object) -> None:
    logger.info(message, *values)
    if config.flush_logs:
        for handler in logging.getLogger().handlers:
            handler.flush()
