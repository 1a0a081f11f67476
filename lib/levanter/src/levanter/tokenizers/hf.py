"""Tokenizers in Hugging Face layout, through the Rust ``tokenizers`` wheel alone.

A folder holds ``tokenizer.json`` (the model) and ``tokenizer_config.json`` (which tokens begin, end and pad a
document, and the chat template). When only ``tokenizer.json`` is given, the roles are taken from well-known names
among its control tokens (:data:`ROLE_NAMES`).
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from rigging.filesystem.atomic import write_text_atomic
from tokenizers import Tokenizer

from levanter.tokenizers.errors import InvalidTextError, TokenizerFileError, TokenizerNotFoundError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"

ROLE_NAMES: Mapping[str, tuple[str, ...]] = {
    "bos_token": ("<|begin_of_text|>", "<s>", "<bos>", "<|bos|>"),
    "eos_token": ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endoftext|>"),
    "pad_token": ("<pad>", "<|pad|>", "[PAD]"),
}
"""Names that a control token of a role usually has, used when no ``tokenizer_config.json`` says."""

_EXCERPT_CHARACTERS = 80


@final
class HfTokenizer:
    """A :class:`~levanter.tokenizers.protocol.MarinTokenizer` over the Rust ``tokenizers`` library.

    Args:
        tokenizer: The loaded model. It is copied: later changes to it are not seen.
        roles: ``bos_token``, ``eos_token``, ``pad_token`` to their text; absent or ``None`` when there is none.
        name_or_path: For messages.
        chat_template: Jinja template of conversations.
    Raises:
        TokenizerFileError: A role names a token that is not in the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        roles: Mapping[str, str | None] | None = None,
        *,
        name_or_path: str = "",
        chat_template: str | None = None,
    ) -> None:
        self._as_text = _plain(tokenizer.to_str())
        self._model = self._as_text.to_str()
        self._as_text.encode_special_tokens = True
        self._name_or_path = name_or_path
        self._chat_template = chat_template
        self._vocab = self._as_text.get_vocab(with_added_tokens=True)
        self._pieces = {number: piece for piece, number in self._vocab.items()}
        added = self._as_text.get_added_tokens_decoder()
        self._special_ids = sorted(number for number, token in added.items() if token.special)
        self._roles = {role: token for role, token in (roles or {}).items() if token is not None}
        for role, token in self._roles.items():
            if token not in self._vocab:
                raise TokenizerFileError(name_or_path, f"{role}={token!r} is not in the vocabulary")
        roles_text = json.dumps(self._roles, sort_keys=True)
        self._fingerprint = hashlib.sha256(f"{roles_text}\n{self._model}".encode()).hexdigest()

    @functools.cached_property
    def _as_control(self) -> Tokenizer:
        """The model that parses control-token strings; a switch on the Rust object, so it takes a second one."""
        return _plain(self._model)

    @property
    def name_or_path(self) -> str:
        """Where it came from."""
        return self._name_or_path

    @property
    def fingerprint(self) -> str:
        """sha256 over the model and the roles: everything that decides ids."""
        return self._fingerprint

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return max(self._pieces, default=-1) + 1

    @property
    def bos_token(self) -> str | None:
        """Text of the beginning-of-document token."""
        return self._roles.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-document token."""
        return self._roles.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        """Id that marks the beginning of a document, if there is one."""
        return self._vocab[self._roles["bos_token"]] if "bos_token" in self._roles else None

    @property
    def eos_token_id(self) -> int | None:
        """Id that marks the end of a document, if there is one."""
        return self._vocab[self._roles["eos_token"]] if "eos_token" in self._roles else None

    @property
    def pad_token_id(self) -> int | None:
        """Id for padding, if there is one."""
        return self._vocab[self._roles["pad_token"]] if "pad_token" in self._roles else None

    @property
    def chat_template(self) -> str | None:
        """Jinja template of conversations."""
        return self._chat_template

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of control tokens, ascending."""
        return list(self._special_ids)

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of a text; see :meth:`MarinTokenizer.encode`.

        Raises:
            InvalidTextError: Not a string, or not encodable.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens, parse_special=parse_special)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        """Ids of many texts, spread over the threads of the Rust library.

        Raises:
            InvalidTextError: One of them is not a string, or not encodable.
        """
        backend = self._as_control if parse_special else self._as_text
        try:
            encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _explain(texts) from error
        ids = [encoding.ids for encoding in encodings]
        if not add_special_tokens:
            return ids
        first = [] if self.bos_token_id is None else [self.bos_token_id]
        last = [] if self.eos_token_id is None else [self.eos_token_id]
        return [[*first, *row, *last] for row in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ids. Incomplete UTF-8 sequences become U+FFFD."""
        return self._as_text.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """Token piece to id, added tokens included."""
        return dict(self._vocab)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Pieces of ids.

        Raises:
            IndexError: An id is not in the vocabulary.
        """
        unknown = [number for number in ids if number not in self._pieces]
        if unknown:
            raise IndexError(
                f"unknown token id={unknown[0]}; expected 0 <= id < {self.vocab_size}. Check the tokenizer."
            )
        return [self._pieces[number] for number in ids]

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of pieces.

        Raises:
            KeyError: A piece is not in the vocabulary.
        """
        return [self._vocab[token] for token in tokens]

    def to_json(self) -> str:
        """The ``tokenizer.json`` text of the model."""
        return self._as_text.to_str(pretty=True) + "\n"

    @property
    def roles(self) -> dict[str, str]:
        """Role (``bos_token`` ...) to token text, those that exist."""
        return dict(self._roles)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._model, self._roles, self._name_or_path, self._chat_template)

    def __repr__(self) -> str:
        return f"HfTokenizer({self._name_or_path!r}, vocab_size={self.vocab_size}, roles={self._roles})"


def _plain(model: str) -> Tokenizer:
    """The model without padding and truncation, which would change what a document's ids are."""
    tokenizer = Tokenizer.from_str(model)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _rebuild(model: str, roles: dict[str, str], name_or_path: str, chat_template: str | None) -> HfTokenizer:
    return HfTokenizer(Tokenizer.from_str(model), roles, name_or_path=name_or_path, chat_template=chat_template)


def _explain(texts: Sequence[str]) -> InvalidTextError:
    for text in texts:
        if not isinstance(text, str):
            return InvalidTextError(f"a {type(text).__name__}, not a string", repr(text)[:_EXCERPT_CHARACTERS])
        try:
            text.encode()
        except UnicodeEncodeError as error:
            excerpt = text[max(error.start - 20, 0) : error.start + 20]
            return InvalidTextError(f"lone surrogate at character {error.start}", excerpt)
    return InvalidTextError("refused by the tokenizer", "")


def load_tokenizer(path: str) -> HfTokenizer:
    """Load a tokenizer from local files; never from a network.

    Args:
        path: A folder in Hugging Face layout, or a ``tokenizer.json``.
    Raises:
        TokenizerNotFoundError: Neither is there.
        TokenizerFileError: The files do not make a tokenizer.
    """
    place = Path(path.removeprefix("file://"))
    model = place / TOKENIZER_FILE if place.is_dir() else place
    if not model.is_file():
        raise TokenizerNotFoundError(path)
    try:
        tokenizer = Tokenizer.from_str(model.read_text(encoding="utf-8"))
    except Exception as error:  # The Rust library raises a bare Exception for a file it cannot parse.
        raise TokenizerFileError(path, f"{model.name} cannot be parsed: {error}") from error
    config = _read_json(model.parent / CONFIG_FILE)
    roles = _roles_from_config({**_read_json(model.parent / SPECIAL_TOKENS_FILE), **config})
    if roles is None:
        roles = _guess_roles(tokenizer)
    template = config.get("chat_template")
    template_file = model.parent / CHAT_TEMPLATE_FILE
    if template_file.is_file():
        template = template_file.read_text(encoding="utf-8")
    if isinstance(template, list):  # Several named templates: the one called "default" is meant.
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return HfTokenizer(tokenizer, roles, name_or_path=path, chat_template=template)


def save_tokenizer(
    tokenizer: HfTokenizer | Tokenizer,
    directory: str,
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
) -> HfTokenizer:
    """Write a tokenizer as a folder in Hugging Face layout, byte for byte the same every time.

    Args:
        tokenizer: Ours, or one of the Rust library fresh from training.
        directory: Made if needed.
        bos_token: Text of the token that begins a document; given roles win over those of ``tokenizer``.
        eos_token: Text of the token that ends a document.
        pad_token: Text of the padding token.
    Returns:
        The tokenizer as :func:`load_tokenizer` would read it back.
    Raises:
        TokenizerFileError: A role names a token that is not in the vocabulary.
    """
    given = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
    chat_template = tokenizer.chat_template if isinstance(tokenizer, HfTokenizer) else None
    if isinstance(tokenizer, HfTokenizer):
        given = {**tokenizer.roles, **{role: token for role, token in given.items() if token is not None}}
        tokenizer = Tokenizer.from_str(tokenizer.to_json())
    ours = HfTokenizer(tokenizer, given, name_or_path=directory, chat_template=chat_template)
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        **ours.roles,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    write_text_atomic(str(place / TOKENIZER_FILE), ours.to_json())
    write_text_atomic(str(place / CONFIG_FILE), json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_text_atomic(str(place / SPECIAL_TOKENS_FILE), json.dumps(ours.roles, indent=2, sort_keys=True) + "\n")
    return ours


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerFileError(str(path), f"cannot be parsed: {error}") from error
    if not isinstance(found, dict):
        raise TokenizerFileError(str(path), "is not a JSON object")
    return found


def _roles_from_config(config: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Roles as the config names them, or ``None`` when it names none at all. A token may be a string or an object."""
    roles: dict[str, str | None] = {}
    for role in ROLE_NAMES:
        value = config.get(role)
        roles[role] = value.get("content") if isinstance(value, dict) else value
    return roles if any(roles.values()) else None


def _guess_roles(tokenizer: Tokenizer) -> dict[str, str | None]:
    control = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return {role: next((name for name in names if name in control), None) for role, names in ROLE_NAMES.items()}
