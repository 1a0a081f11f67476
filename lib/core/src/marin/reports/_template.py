"""The templates of the pages: escaped by default, strict about what a page forgot to pass; the extra ``report``."""

from __future__ import annotations

from typing import Any

from marin.errors import UsageError
from marin.reports._format import format_bytes, format_seconds

try:
    import jinja2
except ImportError:
    jinja2 = None


def render(template: str, **values: Any) -> str:
    """Fill a template of this package.

    Args:
        template: File name below ``templates/``.
        values: What it shows.
    Returns:
        The text.
    Raises:
        UsageError: jinja2 is not installed.
    """
    if jinja2 is None:
        raise UsageError("pages need jinja2.", hint="Install it: pip install 'marin-core[report]'.")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("marin.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    environment.filters["seconds"] = format_seconds
    return environment.get_template(template).render(**values)
