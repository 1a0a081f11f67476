"""How a conversation becomes text: the tokenizer's chat template, another one, or a plain format string."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levanter.data.errors import DataConfigError
from levanter.errors import MissingExtraError
from levanter.tokenizers.protocol import MarinTokenizer

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MessageRenderer:
    """One way to write conversations.

    Attributes:
        render: ``render(messages, open_turn)`` gives the text; ``open_turn`` adds what opens the assistant's next turn.
        is_template: Whether a template wrote it: its control tokens are to be parsed, and it ends its turns itself.
    """

    render: Callable[[Messages, bool], str]
    is_template: bool


def message_renderer(
    tokenizer: MarinTokenizer, *, chat_template: str | None = None, message_format: str | None = None
) -> MessageRenderer | None:
    """Choose how to write conversations; None where nothing says how.

    Args:
        tokenizer: Its template is taken when neither of the others is given.
        chat_template: A Jinja template.
        message_format: A format string of ``role`` and ``content``, applied to each message.

    Raises:
        DataConfigError: both are given, or the template cannot be parsed.
        MissingExtraError: a template is needed and Jinja is not installed.

    Example:
        >>> from levanter.tokenizers.passthrough import PassthroughTokenizer
        >>> chosen = message_renderer(PassthroughTokenizer(9), message_format="{role}: {content};")
        >>> chosen.render([{"role": "user", "content": "Hi"}], False)
        'user: Hi;'
    """
    if chat_template is not None and message_format is not None:
        raise DataConfigError("format.chat_template", "message_format is set too", "one of them")
    if message_format is not None:
        return MessageRenderer(lambda messages, _: "".join(map(_formatted(message_format), messages)), False)
    source = chat_template or tokenizer.chat_template
    if source is None:
        return None
    try:
        adapter = importlib.import_module("levanter._adapters.chat_template")
    except ModuleNotFoundError as error:
        raise MissingExtraError("a chat template", "chat") from error
    tokens = {name: getattr(tokenizer, name) or "" for name in ("bos_token", "eos_token")}
    try:
        render = adapter.compile_template(source, **tokens)
    except adapter.TemplateError as error:
        raise DataConfigError("format.chat_template", f"it cannot be parsed: {error}", "a Jinja template") from error

    def refused_as_value_error(messages: Messages, open_turn: bool) -> str:
        try:
            return render(messages, open_turn)
        except adapter.TemplateError as error:
            raise ValueError(f"the chat template refuses it: {error}") from error

    return MessageRenderer(refused_as_value_error, True)


def _formatted(form: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda message: form.format(role=message["role"], content=message["content"])
