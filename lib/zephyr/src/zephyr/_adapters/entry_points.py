"""Sinks that other packages bring along, found by name when they are asked for."""

from typing import TYPE_CHECKING, Any

from zephyr.errors import DatasetError

if TYPE_CHECKING:
    from zephyr.connectors import Sink

GROUP = "zephyr.sinks"


def named_sink(name: str, **options: Any) -> "Sink":
    """Make the sink that is registered under `name` in the entry point group `zephyr.sinks`.

    Raises:
        DatasetError: there is none.
    """
    from importlib.metadata import entry_points

    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = sorted(entry.name for entry in entry_points(group=GROUP))
        raise DatasetError(
            f"cannot write: sink={name!r} is not installed, installed={known}; expected a package that registers it "
            f"under the entry point group {GROUP!r}. Install that package (marin-levanter for levanter_cache)."
        )
    return found[0].load()(**options)
