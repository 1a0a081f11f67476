"""Chat templates, rendered as ``transformers`` renders them: Jinja in a sandbox that cannot change what it is given.

References:
    https://huggingface.co/docs/transformers/chat_templating_writing (whitespace, ``raise_exception``, ``tojson``,
    ``strftime_now``, ``{% generation %}``).
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

TemplateError = jinja2.TemplateError


class _Generation(jinja2.ext.Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's words and renders them unchanged."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> Any:
        """The body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def compile_template(source: str, **variables: Any) -> Callable[[Sequence[Mapping[str, Any]], bool], str]:
    """A function from messages, and whether to open an assistant turn after them, to text.

    Args:
        source: The template.
        **variables: More names it may use, such as ``bos_token``.

    Raises:
        TemplateError: the template cannot be parsed; the function raises it too, when the template refuses messages.

    Example:
        >>> render = compile_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
        >>> render([{"role": "user", "content": "Hi"}], False)
        '<user>Hi'
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    helpers = {"raise_exception": _raise, "strftime_now": lambda form: dt.datetime.now().strftime(form)}
    cast(dict[str, Any], environment.globals).update(helpers)
    template = environment.from_string(source)
    return lambda messages, generate: template.render(
        messages=messages, add_generation_prompt=generate, tools=None, documents=None, **variables
    )


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
