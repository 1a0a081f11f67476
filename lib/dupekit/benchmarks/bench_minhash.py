"""MinHash signatures a second, text in, beside datasketch and rensa.

500-word documents, word 5-grams, 286 slots, one thread. Before timing, every contestant's estimates are held against
exact Jaccard similarities of the same pairs, and LSH recall on planted near duplicates is compared (26 bands of 11).
"""

import importlib
import math
import statistics
from collections.abc import Callable
from importlib import metadata

import dupekit
import pyarrow as pa
from _harness import documents, edited, interleaved, pin_to_one_core, report, rivals, smoke_asked
from dupekit import Transformation
from dupekit.testing import forced_simd

SLOTS, BANDS, WORDS, NGRAM = 286, 26, 500, 5
Signer = Callable[[list[str]], list[list[int]]]


def shingles(text: str) -> list[str]:
    """Word 5-grams, as both rivals want them."""
    words = text.split()
    return [" ".join(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)]


def ours(kind: str, texts: list[str]) -> pa.RecordBatch:
    """Signatures as an Arrow column: what a pipeline would keep."""
    batch = pa.record_batch({"text": texts})
    return dupekit.transform(batch, [Transformation.MinHash("text", "signature", SLOTS, NGRAM, kind=kind)])


def naive(texts: list[str]) -> pa.RecordBatch:
    """The compat formula in its plain loop."""
    with forced_simd("scalar"):
        return ours("compat", texts)


def datasketch_signatures(texts: list[str]) -> list:
    """One `MinHash` a text, by its fastest documented way."""
    module = importlib.import_module("datasketch")
    return [signature_of(module, text) for text in texts]


def signature_of(module, text: str):
    """A datasketch signature."""
    signature = module.MinHash(num_perm=SLOTS, seed=1)
    signature.update_batch([shingle.encode() for shingle in shingles(text)])
    return signature


def rensa_signatures(texts: list[str]) -> list[list[int]]:
    """One `RMinHash` digest a text."""
    module = importlib.import_module("rensa")
    digests = []
    for text in texts:
        signature = module.RMinHash(num_perm=SLOTS, seed=42)
        signature.update(shingles(text))
        digests.append(signature.digest())
    return digests


SIGNERS: dict[str, Signer] = {
    "compat": lambda texts: ours("compat", texts)["signature"].to_pylist(),
    "fast32": lambda texts: ours("fast32", texts)["signature"].to_pylist(),
    "datasketch": lambda texts: [signature.digest().tolist() for signature in datasketch_signatures(texts)],
    "rensa": rensa_signatures,
}


def errors_over_theory(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Root mean square of (estimate - J) / sqrt(J (1 - J) / slots) for each contestant; 1 is theory."""
    exact = []
    for pair in pairs:
        a, b = (set(shingles(text)) for text in pair)
        exact.append(len(a & b) / len(a | b))
    result = {}
    for name, sign in SIGNERS.items():
        signatures = sign([text for pair in pairs for text in pair])
        deviations = [
            (dupekit.estimate_jaccard(a, b) - j) / dupekit.jaccard_standard_error(j, SLOTS)
            for a, b, j in zip(signatures[::2], signatures[1::2], exact, strict=True)
        ]
        result[name] = round(math.sqrt(statistics.fmean(d * d for d in deviations)), 3)
    return result


def recalls(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Share of planted pairs that meet in a bucket, by bands of equal slots."""
    width, result = SLOTS // BANDS, {}
    for name, sign in SIGNERS.items():
        signatures = sign([text for pair in pairs for text in pair])
        met = [
            any(a[at : at + width] == b[at : at + width] for at in range(0, SLOTS, width))
            for a, b in zip(signatures[::2], signatures[1::2], strict=True)
        ]
        result[name] = round(statistics.fmean(met), 3)
    return result


def main() -> None:
    """Check, time, print."""
    smoke = smoke_asked(__doc__)
    pin_to_one_core()
    with rivals("datasketch==2.*", "rensa"):
        count, rounds = (20, 3) if smoke else (300, 9)
        originals = documents(count, WORDS, seed=1)
        pairs = [(text, edited(text, 0.01 * (1 + n % 8), seed=n)) for n, text in enumerate(originals)]
        errors, recall = errors_over_theory(pairs), recalls(pairs)
        if not smoke and not all(0.5 < error < 1.2 for error in errors.values()):
            raise SystemExit(f"the contestants do not estimate the same thing: {errors}")
        many, few = documents(100 if smoke else 1_000, WORDS, seed=2), documents(5 if smoke else 40, WORDS, seed=2)
        some = documents(20 if smoke else 200, WORDS, seed=2)
        rates = interleaved(
            {
                "fast32": (len(many), lambda: ours("fast32", many)),
                "compat": (len(some), lambda: ours("compat", some)),
                "compat naive loop": (len(some), lambda: naive(some)),
                "rensa": (len(some), lambda: rensa_signatures(some)),
                "datasketch": (len(few), lambda: datasketch_signatures(few)),
            },
            rounds,
        )
        fast, compat = rates["fast32"][0], rates["compat"][0]
        report(
            name="minhash_fast32_text_in",
            value=round(fast),
            unit="documents/s/core",
            spread=round(rates["fast32"][1], 3),
            n=rounds,
            rates={name: round(rate) for name, (rate, _) in rates.items()},
            spreads={name: round(spread, 3) for name, (_, spread) in rates.items()},
            fast32_over_rensa=round(fast / rates["rensa"][0], 2),
            fast32_over_datasketch=round(fast / rates["datasketch"][0], 1),
            compat_over_naive=round(compat / rates["compat naive loop"][0], 2),
            error_over_theory=errors,
            lsh_recall=recall,
            rival_version={name: metadata.version(name) for name in ("datasketch", "rensa")},
            settings={"slots": SLOTS, "bands": BANDS, "words": WORDS, "ngram": NGRAM, "clock": "CPU time, one core"},
        )


if __name__ == "__main__":
    main()
