"""Weights & Biases as a tracker; the extra ``wandb`` brings the client.

Offline unless a key is configured: ``mode`` None means ``offline`` without ``WANDB_API_KEY`` (wandb decides which key
counts), so a laptop without an account still records a run that can be synced later.
"""

import importlib
from dataclasses import dataclass, field

from levanter.errors import MissingExtraError
from levanter.tracker.background import BackgroundTracker
from levanter.tracker.tracker import Tracker, TrackerConfig


@TrackerConfig.register_subclass("wandb")
@dataclass(frozen=True)
class WandbConfig(TrackerConfig):
    """Fields are wandb's own ``init`` arguments.

    Attributes:
        entity: Team or user.
        project: Project name.
        name: Display name of the run.
        tags: Tags.
        id: Run id; None uses the trainer's.
        group: Group of runs.
        mode: ``online``, ``offline``, ``disabled``; None picks online when a key is configured and the server answers,
            else offline.
        resume: wandb's resume policy.
        save_code: Upload the main script.
        init_timeout: Seconds to wait for the server at the start.
        background: Send on a thread.
        background_max_queue_size: Calls that may wait there.
        background_finish_timeout: Seconds to wait for them at the end.
    """

    entity: str | None = None
    project: str = "levanter"
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    id: str | None = None
    group: str | None = None
    mode: str | None = None
    resume: str = "allow"
    save_code: bool = False
    init_timeout: float = 90.0
    background: bool = True
    background_max_queue_size: int = 10_000
    background_finish_timeout: float = 120.0

    def init(self, run_id: str, log_dir: str) -> Tracker:
        """Start the wandb run.

        Raises:
            MissingExtraError: wandb is not installed.
            TrackerError: ``mode`` insists on online and the server does not answer.
        """
        try:
            adapter = importlib.import_module("levanter._adapters.wandb_tracker")
        except ModuleNotFoundError as error:
            raise MissingExtraError("the wandb tracker", "wandb") from error
        tracker = adapter.WandbTracker(self, run_id, log_dir)
        if not self.background:
            return tracker
        return BackgroundTracker(
            tracker,
            max_queue_size=self.background_max_queue_size,
            finish_timeout_s=self.background_finish_timeout,
        )
