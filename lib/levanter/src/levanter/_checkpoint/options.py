"""Settings of saves that few runs need: how bytes are written, and what is said while a save takes its time."""

from dataclasses import dataclass

from levanter.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True)
class CheckpointWriteConfig:
    """How the bytes of a save are written.

    Attributes:
        max_chunk_bytes: Largest chunk of an array in bytes; None chooses 4 to 64 MiB by the array's size.
        max_staged_host_bytes: Most host memory in bytes that the copies of one save may take in a process. A save is
            staged whole, so a state that needs more is refused when the run starts; None sets no limit.
        data_copy_concurrency: Threads that copy and check bytes.
        cache_pool_bytes: Bytes of chunks that stay in memory for reuse; a save reuses none, so 0 costs nothing.
        max_write_replicas: Copies of one array that share the writing of it. Here the first one writes, whatever the
            value: the checkpoint is the same.
        min_replica_slice_bytes: Smallest slice for which another copy would be asked to help; see above.
    """

    max_chunk_bytes: int | None = None
    max_staged_host_bytes: int | None = None
    data_copy_concurrency: int = 8
    cache_pool_bytes: int = 0
    max_write_replicas: int = 1
    min_replica_slice_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name in ("max_chunk_bytes", "max_staged_host_bytes", "data_copy_concurrency", "max_write_replicas",
                     "min_replica_slice_bytes"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; expected >= 1.", key=f"checkpointer.write.{name}")
        if self.cache_pool_bytes < 0:
            raise ConfigError(
                f"cache_pool_bytes={self.cache_pool_bytes}; expected >= 0.", key="checkpointer.write.cache_pool_bytes"
            )

    def check_staging(self, needed_bytes: int) -> None:
        """Refuse a state whose copies take more host memory than allowed.

        Raises:
            ConfigError: it does.

        Example:
            >>> CheckpointWriteConfig(max_staged_host_bytes=100).check_staging(99)
        """
        limit = self.max_staged_host_bytes
        if limit is not None and needed_bytes > limit:
            raise ConfigError(
                f"a save stages {needed_bytes / GIB:.3g} GiB in this process, max_staged_host_bytes={limit}; expected "
                f">= {needed_bytes}. Raise it, or spread the state over more processes.",
                key="checkpointer.write.max_staged_host_bytes",
            )


@dataclass(frozen=True)
class CheckpointDebugConfig:
    """What is said about a save that takes its time or its memory.

    Attributes:
        enabled: Say anything.
        log_interval: Seconds between lines about a save that is still running.
        dump_stacks_after: Seconds after which the stacks of all threads go to stderr, once a save; None never.
        tracemalloc_frames: Frames kept of every Python allocation; 0 does not trace them (tracing slows Python down).
        top_allocations: Largest allocation sites named after a save.
        force_gc_before_serialize: Collect garbage before the copy, so that what is left is in use.
        flush_logs: Flush the log handlers after every line, for processes that are about to be killed.
    """

    enabled: bool = False
    log_interval: float = 60.0
    dump_stacks_after: float | None = None
    tracemalloc_frames: int = 25
    top_allocations: int = 8
    force_gc_before_serialize: bool = True
    flush_logs: bool = True

    def __post_init__(self) -> None:
        after = self.dump_stacks_after
        if self.log_interval <= 0 or (after is not None and after <= 0):
            raise ConfigError(
                f"log_interval={self.log_interval}, dump_stacks_after={after}; expected > 0 seconds.",
                key="checkpointer.debug",
            )
        if self.tracemalloc_frames < 0 or self.top_allocations < 0:
            raise ConfigError(
                f"tracemalloc_frames={self.tracemalloc_frames}, top_allocations={self.top_allocations}; expected >= 0.",
                key="checkpointer.debug",
            )
