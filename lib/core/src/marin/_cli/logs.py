"""What of the logs a person sees who runs an experiment: warnings, and how far long work is."""

import logging

from rigging.log_setup import LineFormatter

_PROGRESS = "rigging.progress"


def show_logs() -> None:
    """Keep INFO and show warnings on stderr; progress lines are shown as they are.

    Does nothing when the program that embeds us has set logging up itself.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    warnings.setFormatter(LineFormatter())
    root.addHandler(warnings)
    root.setLevel(logging.INFO)
    progress = logging.StreamHandler()
    progress.setFormatter(logging.Formatter("  ...      %(message)s"))
    logging.getLogger(_PROGRESS).addHandler(progress)
