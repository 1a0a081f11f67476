"""The wandb client behind the tracker interface."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import wandb

from levanter.tracker.tracker import Tracker, scalars

if TYPE_CHECKING:
    from levanter.tracker.wandb import WandbConfig


class WandbTracker(Tracker):
    """One wandb run; see :class:`levanter.tracker.wandb.WandbConfig`."""

    name = "wandb"

    def __init__(self, config: "WandbConfig", run_id: str, log_dir: str) -> None:
        mode = config.mode or ("online" if wandb.Settings().api_key else "offline")
        self._run = wandb.init(
            entity=config.entity,
            project=config.project,
            name=config.name,
            tags=config.tags,
            id=config.id or run_id,
            group=config.group,
            mode=mode,
            resume=config.resume,
            save_code=config.save_code,
            dir=log_dir,
        )

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Send scalars; several calls for one step become one row.

        The client closes a step at the first call for a later one. Told to commit, it would close it at once and drop
        what evaluation adds afterwards.
        """
        self._run.log(scalars(metrics), step=step, commit=None if commit else False)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Update the run summary."""
        self._run.summary.update(scalars(metrics))

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Update the run configuration."""
        self._run.config.update(dict(hparams), allow_val_change=True)

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Upload a file."""
        self._run.log_artifact(path, name=name, type=type or "file")

    def finish(self) -> None:
        """Close the run."""
        self._run.finish()
