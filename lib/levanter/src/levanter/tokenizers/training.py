"""Train a byte-level BPE tokenizer, the same one every time.

Byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; over bytes as in GPT-2, Radford et al. 2019, section 2.2)
starts from the 256 bytes and merges the most frequent adjacent pair until the vocabulary is full. Starting from all
bytes makes encoding total and lossless. Determinism: the byte alphabet is given in sorted order, ties between pairs are
broken by id, and counting does not depend on the number of threads.
"""

from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from levanter.tokenizers.errors import InvalidTextError, VocabularySizeError

BYTE_ALPHABET_SIZE = 256
DEFAULT_VOCAB_SIZE = 4096
DEFAULT_SPECIAL_TOKENS = ("<|endoftext|>",)


class _Counted:
    """Passes texts through while counting them, so that an error can say how much there was."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.documents = 0
        self.characters = 0
        self.invalid: InvalidTextError | None = None

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            try:
                text.encode()
            except (UnicodeEncodeError, AttributeError):
                # The Rust trainer hides exceptions of its iterator, so this one is kept and raised afterwards.
                reason = f"document {self.documents} is not a string of Unicode scalar values"
                self.invalid = InvalidTextError(reason, repr(text)[:80])
                return
            self.documents += 1
            self.characters += len(text)
            yield text


def train_byte_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
    min_frequency: int = 2,
) -> Tokenizer:
    """Train byte-level BPE.

    Args:
        texts: Documents; read once, in order. Their order does not change the result.
        vocab_size: Tokens in all: 256 bytes, the special tokens, and merges.
        special_tokens: Control tokens; they get the first ids, in this order.
        min_frequency: A pair seen less often is not merged.
    Returns:
        A tokenizer with exactly ``vocab_size`` tokens, ids ``0 .. vocab_size-1``.
    Raises:
        VocabularySizeError: The text holds fewer mergeable pairs than asked for.
        ValueError: ``vocab_size`` leaves no room for the bytes and the special tokens.
        InvalidTextError: A document is no string, or holds a lone surrogate.
    Example:
        >>> tokenizer = train_byte_bpe(["low lower lowest"] * 4, vocab_size=260)
        >>> tokenizer.decode(tokenizer.encode("lower!").ids)
        'lower!'

    References:
        Sennrich et al., arXiv:1508.07909; Radford et al., "Language Models are Unsupervised Multitask Learners", 2.2.
    """
    smallest = BYTE_ALPHABET_SIZE + len(special_tokens)
    if vocab_size < smallest:
        raise ValueError(
            f"vocabulary too small: vocab_size={vocab_size}; expected >= {smallest} "
            f"(256 bytes and {len(special_tokens)} special tokens). Ask for more tokens."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    counted = _Counted(texts)
    tokenizer.train_from_iterator(iter(counted), trainer)
    if counted.invalid is not None:
        raise counted.invalid
    reached = tokenizer.get_vocab_size(with_added_tokens=True)
    if reached < vocab_size:
        raise VocabularySizeError(vocab_size, reached, counted.documents, counted.characters)
    return tokenizer
