r"""Preference data: files of answer pairs, turned into pairs of sequences.

A row of a ``preference_chat`` file (jsonl, compressed or not) is one of

    {"prompt": "...", "chosen": "...", "rejected": "..."}
    {"chosen": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], "rejected": [...]}

In the second form the messages that both lists share at the start are the prompt and the rest is the answer. They are
written by the tokenizer's chat template, or by the format's ``chat_template`` or ``message_format``
(:mod:`levanter.data.text.chat`). Weights are 1 on the tokens of the answer, its end-of-text token included,
and 0 on the prompt: the answer starts where the ids of "prompt" and of "prompt + answer" part, so a tokenizer that
merges across the border is handled.

Rows with an empty answer are skipped with a warning. A pair longer than the model is an error, or dropped.

References:
    Rafailov et al., Direct preference optimization, arXiv:2305.18290, section 4 (what a preference is).
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import fsspec
import haliax as hax
import numpy as np

from levanter.data.errors import BadRecordError, DataConfigError
from levanter.data.sharded_datasource import expand_urls
from levanter.data.text.chat import MessageRenderer, message_renderer
from levanter.data.text.config import TRAIN, DatasetComponent, DatasetComponentBase
from levanter.data.text.examples import LmExample
from levanter.data.text.formats import LmDatasetFormatBase
from levanter.dpo import DpoExample
from levanter.tokenizers.hf import load_tokenizer
from levanter.tokenizers.passthrough import PassthroughTokenizer
from levanter.tokenizers.protocol import MarinTokenizer

logger = logging.getLogger(__name__)
Conversation = str | Sequence[Mapping[str, str]]


@LmDatasetFormatBase.register_subclass("preference_chat")
@dataclasses.dataclass(frozen=True)
class PreferenceChatLmDatasetFormat(LmDatasetFormatBase):
    """Answer pairs; see the module for the two forms of a row.

    Attributes:
        chosen_field: Field of the preferred answer.
        rejected_field: Field of the other.
        prompt_field: Field of the prompt when answers are strings.
        chat_template: Jinja template that writes messages; None takes the tokenizer's.
        message_format: Writes each message instead, from its ``role`` and ``content``: ``"{role}: {content}\\n"``.
        slice_strategy: What happens to a pair longer than the sequence: ``raise`` or ``drop``.
    """

    chosen_field: str = "chosen"
    rejected_field: str = "rejected"
    prompt_field: str = "prompt"
    chat_template: str | None = None
    message_format: str | None = None
    slice_strategy: Literal["raise", "drop"] = "raise"

    def __post_init__(self) -> None:
        if self.slice_strategy not in ("raise", "drop"):
            raise DataConfigError("format.slice_strategy", f"it is {self.slice_strategy!r}", "raise or drop")
        if self.chat_template is not None and self.message_format is not None:
            raise DataConfigError("format.chat_template", "message_format is set too", "one of them")


@dataclasses.dataclass(frozen=True)
class PreferenceLmDataConfig:
    """The ``data:`` section of preference training: one component of answer pairs.

    Attributes:
        tokenizer: Folder or file of a tokenizer; ``passthrough`` for rows of ids in text.
        components: Exactly one, of format ``preference_chat`` and not packed.
        vocab_size: Ids of the ``passthrough`` tokenizer.
    """

    tokenizer: str = ""
    components: dict[str, DatasetComponentBase] = dataclasses.field(default_factory=dict)
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if not self.components:
            return
        if len(self.components) != 1:
            names = ", ".join(sorted(self.components))
            raise DataConfigError("components", f"there are {names}", "exactly one; list all files in its urls")
        part = self.component
        if not isinstance(part.format, PreferenceChatLmDatasetFormat):
            found = type(part.format).__name__
            raise DataConfigError("components", f"its format is {found}", "format: {type: preference_chat}")
        if part.pack:
            reason = f"pack is {part.pack!r}, but answers of different pairs cannot share a sequence"
            raise DataConfigError("components", reason, "pack: false")

    @property
    def component(self) -> DatasetComponent:
        """The one component.

        Raises:
            DataConfigError: there is none, or it holds no files.
        """
        part = next(iter(self.components.values()), None)
        if not isinstance(part, DatasetComponent) or part.source is None:
            raise DataConfigError("components", "it has no files", "one component with a source of preference files")
        return part

    def the_tokenizer(self) -> MarinTokenizer:
        """The tokenizer."""
        if self.tokenizer == "passthrough":
            return PassthroughTokenizer(self.vocab_size or 0)
        return load_tokenizer(self.tokenizer)

    def pairs(self, Pos: hax.Axis, split: str = TRAIN) -> list[DpoExample]:
        """All pairs of a split, in file order, padded to ``Pos`` on the right.

        Raises:
            DataConfigError: no usable pair.
            BadRecordError: a row without the fields, or a pair that does not fit under ``slice_strategy: raise``.
        """
        part = self.component
        assert part.source is not None and isinstance(part.format, PreferenceChatLmDatasetFormat)
        urls = part.source.urls_of(split)
        found = read_pairs(expand_urls(urls), part.format, self.the_tokenizer(), Pos) if urls else []
        if split == TRAIN and not found:
            raise DataConfigError("components", f"no usable pair in {urls}", "rows with two answers")
        return found


def read_pairs(
    files: Sequence[str], form: PreferenceChatLmDatasetFormat, tokenizer: MarinTokenizer, Pos: hax.Axis
) -> list[DpoExample]:
    """Read, render and tokenise files of pairs; see :meth:`PreferenceLmDataConfig.pairs`."""
    pairs, empty, long = [], 0, 0
    renderer = message_renderer(tokenizer, chat_template=form.chat_template, message_format=form.message_format)
    for path, number, row in _rows(files):
        prompt, chosen, rejected = split_row(row, form, path, number, renderer=renderer)
        templated = renderer is not None and renderer.is_template and isinstance(row[form.chosen_field], list)
        if not chosen.strip() or not rejected.strip():
            empty += 1
            continue
        sequences = [answer_ids(prompt, answer, tokenizer, templated=templated) for answer in (chosen, rejected)]
        longest = max(len(ids) for ids, _ in sequences)
        if longest > Pos.size:
            if form.slice_strategy == "raise":
                reason = f"{longest} tokens do not fit {Pos.size}; raise train_seq_len or set slice_strategy: drop"
                raise BadRecordError(path, number, reason, chosen)
            long += 1
            continue
        first, second = (make_example(ids, start, Pos) for ids, start in sequences)
        pairs.append(DpoExample(first, second))
    if empty or long:
        logger.warning("skipped %d pairs with an empty answer and %d that are longer than %d", empty, long, Pos.size)
    return pairs


def split_row(
    row: Mapping[str, Any],
    form: PreferenceChatLmDatasetFormat,
    path: str = "",
    number: int = 0,
    *,
    renderer: MessageRenderer | None = None,
) -> tuple[str, str, str]:
    """Prompt, preferred and other answer as text.

    Args:
        row: One row.
        form: Names its fields.
        path: File of the row, for messages.
        number: Its line.
        renderer: Writes lists of messages; None where nothing says how.

    Raises:
        BadRecordError: a field is missing or is neither a string nor a list of messages, or the template refuses them.
        DataConfigError: the row holds messages and there is no renderer.

    Example:
        >>> split_row({"prompt": "Hi", "chosen": " Yes", "rejected": " No"}, PreferenceChatLmDatasetFormat())
        ('Hi', ' Yes', ' No')
    """
    answers: list[Any] = []
    for name in (form.chosen_field, form.rejected_field):
        value = row.get(name)
        if not isinstance(value, str | list):
            reason = f"{name} is {type(value).__name__}, not a string or a list of messages"
            raise BadRecordError(path, number, reason, str(row))
        answers.append(value)
    if all(isinstance(answer, str) for answer in answers):
        return str(row.get(form.prompt_field) or ""), answers[0], answers[1]
    if not all(isinstance(answer, list) for answer in answers):
        raise BadRecordError(path, number, "one answer is a string and the other a list", str(row))
    if renderer is None:
        raise DataConfigError(
            "format.chat_template",
            f"it is not set, nor is format.message_format, and the tokenizer has no template, but line {number} of "
            f"{path or 'the data'} holds messages",
            "a tokenizer with a chat template, format.chat_template, or format.message_format",
        )
    try:
        return _render(answers[0], answers[1], renderer)
    except (KeyError, TypeError) as error:
        raise BadRecordError(path, number, f"a message without role and content ({error})", str(row)) from error
    except ValueError as error:
        raise BadRecordError(path, number, str(error), str(row)) from error


def _render(chosen: Sequence[Any], rejected: Sequence[Any], renderer: MessageRenderer) -> tuple[str, str, str]:
    """The prompt ends where the answer's own words begin: what opens the assistant's turn belongs to it."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    prompt = renderer.render(chosen[:shared], True) if shared else ""
    whole = [renderer.render(messages, False) for messages in (chosen, rejected)]
    # A template may write an opened turn otherwise than a finished one (a place for thoughts): what all share counts.
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(prompt, *whole, strict=False))
    length = sum(1 for _ in same)
    pairs = zip(whole, (chosen, rejected), strict=True)
    first, second = (text[length:] if len(messages) > shared else "" for text, messages in pairs)
    return prompt[:length], first, second


def answer_ids(
    prompt: str, answer: str, tokenizer: MarinTokenizer, *, templated: bool = False
) -> tuple[list[int], int]:
    """Ids of prompt and answer, and where the answer starts.

    The end-of-text token, where there is one, ends them; a template ends its turns itself, and its control tokens are
    parsed.

    Example:
        >>> answer_ids("1 2", " 3 4", PassthroughTokenizer(9))
        ([1, 2, 3, 4], 2)
    """
    ids = tokenizer.encode(prompt + answer, parse_special=templated)
    before = tokenizer.encode(prompt, parse_special=templated) if prompt else []
    start = 0
    while start < min(len(ids), len(before)) and ids[start] == before[start]:
        start += 1
    if tokenizer.eos_token_id is not None and not templated:
        ids = [*ids, tokenizer.eos_token_id]
    return ids, start


def make_example(ids: Sequence[int], start: int, Pos: hax.Axis) -> LmExample:
    """A sequence padded on the right, weighing the predictions of tokens ``start ..`` and nothing else.

    Example:
        >>> make_example([5, 6, 7], 2, hax.Axis("position", 4)).loss_weight.array.tolist()
        [0.0, 1.0, 0.0, 0.0]
    """
    tokens = np.zeros(Pos.size, np.int32)
    tokens[: len(ids)] = ids
    weight = np.zeros(Pos.size, np.float32)
    weight[max(start - 1, 0) : len(ids) - 1] = 1.0
    return LmExample(hax.NamedArray(tokens, (Pos,)), hax.NamedArray(weight, (Pos,)), None)


def _rows(files: Sequence[str]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for path in files:
        compression = "zstd" if PurePosixPath(path).suffix == ".zst" else "infer"
        with fsspec.open(path, "rt", encoding="utf-8", compression=compression) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise BadRecordError(path, number, f"not JSON: {error}", line) from error
                if not isinstance(row, dict):
                    raise BadRecordError(path, number, f"a {type(row).__name__}, not a JSON object", line)
                yield path, number, row
