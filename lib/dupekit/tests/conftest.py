"""References in plain Python that share no code with the kernels, and makers of test documents."""

import random
import re
import string

import pytest
import xxhash
from hypothesis import settings

# A busy machine is not a bug: examples may take their time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Unicode White_Space, written out: Python's str.split also splits at U+001C to U+001F, which are not in it.
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
MASK_64 = (1 << 64) - 1
MASK_128 = (1 << 128) - 1


class Pcg64:
    """PCG XSL-RR 128/64 seeded from 64 bits, in big integers (O'Neill 2014; seeding as rand_core does it)."""

    def __init__(self, seed: int) -> None:
        words = []
        for _ in range(8):
            seed = (seed * 6364136223846793005 + 11634580027462260723) & MASK_64
            mixed = (((seed >> 18) ^ seed) >> 27) & 0xFFFFFFFF
            turn = seed >> 59
            words.append(((mixed >> turn) | (mixed << (32 - turn))) & 0xFFFFFFFF)
        numbers = [sum(word << (32 * place) for place, word in enumerate(words[at : at + 4])) for at in (0, 4)]
        self.increment = numbers[1] | 1
        self.state = (numbers[0] + self.increment) & MASK_128
        self._step()

    def _step(self) -> None:
        self.state = (self.state * 0x2360ED051FC65DA44385DF649FCCF645 + self.increment) & MASK_128

    def next_u64(self) -> int:
        self._step()
        folded = (self.state >> 64) ^ (self.state & MASK_64)
        turn = self.state >> 122
        return ((folded >> turn) | (folded << (64 - turn))) & MASK_64

    def next_u128(self) -> int:
        low = self.next_u64()
        return (self.next_u64() << 64) | low


class Reference:
    """What the kernels should compute, as directly as Python can say it."""

    pcg64 = Pcg64

    @staticmethod
    def words(text: str) -> list[str]:
        return [word for word in re.split(f"[{WHITE_SPACE}]+", text) if word]

    @classmethod
    def clean(cls, text: str) -> str:
        lowered = text.lower().translate(str.maketrans("", "", string.punctuation))
        return " ".join(cls.words(lowered))

    @staticmethod
    def word_shingles(text: str, size: int) -> list[str]:
        spans = [match.span() for match in re.finditer(f"[^{WHITE_SPACE}]+", text)]
        if len(spans) < size:
            return [text]
        return [text[spans[at][0] : spans[at + size - 1][1]] for at in range(len(spans) - size + 1)]

    @staticmethod
    def char_shingles(text: str, size: int) -> list[str]:
        if len(text) < size:
            return [text]
        return [text[at : at + size] for at in range(len(text) - size + 1)]

    @classmethod
    def compat_signature(cls, text: str, num_perms: int, size: int, kind: str, seed: int) -> list[int]:
        generator = Pcg64(seed)
        coefficients = [generator.next_u128() | 1 for _ in range(num_perms)]
        shingles = cls.word_shingles(text, size) if kind == "word" else cls.char_shingles(text, size)
        hashes = [xxhash.xxh3_64_intdigest(shingle.encode()) for shingle in shingles]
        return [min((h * c & MASK_128) >> 64 for h in hashes) for c in coefficients]

    @staticmethod
    def fast32_slots(hashes: list[int], num_perms: int, seed: int) -> list[int]:
        generator = Pcg64(seed)
        slots = []
        for _ in range(num_perms):
            draw = generator.next_u64()
            a, b = (draw & 0xFFFFFFFF) | 1, draw >> 32
            slots.append(min(((h & 0xFFFFFFFF) * a + (h >> 32) + b) & 0xFFFFFFFF for h in hashes))
        return slots

    @staticmethod
    def buckets(signature: list[int], num_bands: int, slot_bytes: int) -> list[int]:
        width = len(signature) // num_bands
        bands = [signature[at : at + width] for at in range(0, len(signature), width)]
        return [
            xxhash.xxh3_64_intdigest(b"".join(slot.to_bytes(slot_bytes, "little") for slot in band)) for band in bands
        ]

    @classmethod
    def ngrams(cls, text: str, size: int) -> set[tuple[str, ...]]:
        tokens = cls.words(text.lower())
        if not tokens:
            return set()
        return {tuple(tokens[at : at + size]) for at in range(max(1, len(tokens) - size + 1))}


class Corpus:
    """Seeded documents of made-up words."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.vocabulary = ["".join(self.random.choices(string.ascii_lowercase, k=n % 9 + 2)) for n in range(5_000)]

    def words(self, count: int) -> list[str]:
        return self.random.choices(self.vocabulary, k=count)

    def text(self, count: int) -> str:
        return " ".join(self.words(count))

    def edited(self, text: str, share: float) -> str:
        """The text with a share of its words replaced."""
        words = text.split()
        for at in self.random.sample(range(len(words)), round(share * len(words))):
            words[at] = self.random.choice(self.vocabulary)
        return " ".join(words)


@pytest.fixture(scope="session")
def reference() -> type[Reference]:
    return Reference


@pytest.fixture
def corpus() -> Corpus:
    return Corpus(seed=20_261)
