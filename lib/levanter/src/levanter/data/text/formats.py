"""What a record of a source means: which of its fields are the document, and how it becomes tokens."""

import dataclasses
from typing import Literal

import draccus

Pack = bool | int | Literal["pad"] | None
DEFAULT_MAX_SEGMENTS = 64


@dataclasses.dataclass(frozen=True)
class LmDatasetFormatBase(draccus.ChoiceRegistry):
    """Base of formats; chosen by ``type:``, ``text`` when it is left out."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """``text``."""
        return "text"


@LmDatasetFormatBase.register_subclass("text")
@dataclasses.dataclass(frozen=True)
class TextLmDatasetFormat(LmDatasetFormatBase):
    """Plain text to be continued.

    Attributes:
        text_key: Field of the text in jsonl, json and parquet.
        pack: Whole documents packed into sequences instead of windows over concatenated documents: ``true`` for up to
            64 documents a sequence, a number for that many, ``pad`` for one. ``null`` and ``false``: windows.
    """

    text_key: str = "text"
    pack: Pack = None


def max_segments(pack: Pack) -> int | None:
    """Documents in a sequence for a ``pack`` setting; ``None`` when windows are meant.

    Raises:
        ValueError: A number below 1, or another word than ``pad``.
    Example:
        >>> [max_segments(pack) for pack in (None, False, True, 8, "pad")]
        [None, None, 64, 8, 1]
    """
    if pack is None or pack is False:
        return None
    if pack is True:
        return DEFAULT_MAX_SEGMENTS
    if pack == "pad":
        return 1
    if isinstance(pack, int) and pack >= 1:
        return pack
    raise ValueError(f"pack={pack!r}; expected true, false, a number >= 1, or 'pad'. Correct the format.")
