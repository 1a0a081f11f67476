"""The wandb client behind the tracker interface."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import wandb

from levanter.errors import TrackerError
from levanter.tracker.tracker import Tracker, scalars

if TYPE_CHECKING:
    from levanter.tracker.wandb import WandbConfig


logger = logging.getLogger(__name__)


class WandbTracker(Tracker):
    """One wandb run; see :class:`levanter.tracker.wandb.WandbConfig`."""

    name = "wandb"

    def __init__(self, config: "WandbConfig", run_id: str, log_dir: str) -> None:
        mode = config.mode or ("online" if wandb.api.api_key else "offline")
        try:
            self._run = _open(config, run_id, log_dir, mode)
        except wandb.errors.CommError as error:
            wandb.teardown()  # the client's service still holds the run that could not be opened
            if config.mode is not None:
                raise TrackerError(
                    f"cannot reach the wandb server: mode={config.mode}, reason={error}; expected an answer within "
                    f"init_timeout={config.init_timeout:g} s. Use mode: offline and run `wandb sync` later."
                ) from error
            logger.error(
                "the wandb server does not answer; the run is recorded offline, `wandb sync` sends it: %s", error
            )
            self._run = _open(config, run_id, log_dir, "offline")

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


def _open(config: "WandbConfig", run_id: str, log_dir: str, mode: str) -> Any:
    return wandb.init(
        entity=config.entity,
        project=config.project,
        name=config.name,
        tags=config.tags,
        id=config.id or run_id,
        group=config.group,
        mode=cast(Any, mode),
        resume=cast(Any, config.resume),
        save_code=config.save_code,
        dir=log_dir,
        settings=wandb.Settings(init_timeout=config.init_timeout),
    )
