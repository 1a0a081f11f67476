"""Storing the compiled step beside the run, where asked."""

import gzip
import os
from typing import Any

from levanter.tracker.tracker import Tracker


def keep_program(
    train_step: Any, state: Any, batch: Any, folder: str, tracker: Tracker, *, jaxpr: bool, hlo: bool
) -> None:
    """Store the step's jaxpr and HLO with the run; each traces or lowers the step once more.

    Args:
        train_step: The jitted step.
        state: Its first argument.
        batch: Its second.
        folder: Where the files go before the tracker copies them.
        tracker: Gets them as artifacts.
        jaxpr: Store ``train_step.jaxpr.txt.gz``.
        hlo: Store ``train_step.hlo.txt``.
    """
    if not jaxpr and not hlo:
        return
    os.makedirs(folder, exist_ok=True)
    if jaxpr:
        path = f"{folder}/train_step.jaxpr.txt.gz"
        with gzip.open(path, "wt") as stream:
            stream.write(str(train_step.trace(state, batch).jaxpr))
        tracker.log_artifact(path, type="jaxpr")
    if hlo:
        path = f"{folder}/train_step.hlo.txt"
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(train_step.lower(state, batch).as_text())
        tracker.log_artifact(path, type="hlo")
