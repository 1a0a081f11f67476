"""How fast text becomes a token cache, against the bare tokenizer library.

Ours: jsonl.gz files -> parse -> tokenise -> committed, verified, compressed cache (`build_cache_in_process`).
Rival: Hugging Face `tokenizers.encode_batch` on the same texts, already in memory, appended to one numpy array. It does
strictly less (no files, no JSON, no store), so the ratio says what everything around the tokenizer costs.
Both give the same token ids; that is checked first. The two are timed in turns; the median of the turns is reported.

    python lib/levanter/benchmarks/bench_token_cache.py [--smoke]
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time

import numpy as np
from levanter.data._shard_build import TokenizeSettings
from levanter.data.text.cache import build_cache_in_process
from levanter.tokenizers import load_tokenizer, save_tokenizer, train_byte_bpe
from tokenizers import Tokenizer


def make_corpus(megabytes: float, seed: int = 0) -> list[str]:
    """Zipf-distributed words in documents of log-normal length."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(rng.choice(letters, size=int(rng.integers(1, 10)))) for _ in range(20_000)]
    texts, size = [], 0
    while size < megabytes * 1e6:
        count = int(rng.lognormal(5.5, 1.0)) + 1
        text = " ".join(words[(i - 1) % len(words)] for i in rng.zipf(1.2, size=count).tolist())
        texts.append(text)
        size += len(text)
    return texts


def write_files(texts: list[str], folder: pathlib.Path, count: int = 4) -> list[str]:
    paths = []
    for number in range(count):
        path = folder / f"part-{number}.jsonl.gz"
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number::count])
        path.write_bytes(gzip.compress(lines.encode(), compresslevel=1))
        paths.append(str(path))
    return paths


def rival(tokenizer: Tokenizer, texts: list[str], eos: int) -> np.ndarray:
    rows = [row for i in range(0, len(texts), 1024) for row in tokenizer.encode_batch(texts[i : i + 1024])]
    return np.concatenate([np.array([*row.ids, eos], dtype=np.int32) for row in rows])


def lock_hash() -> str:
    lock = pathlib.Path(__file__).resolve().parents[3] / "uv.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:16] if lock.exists() else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny corpus, one turn")
    smoke = parser.parse_args().smoke
    megabytes, turns = (0.5, 1) if smoke else (12.0, 5)
    texts = make_corpus(megabytes)
    os.environ["MARIN_PROGRESS"] = "0"
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        tokenizer_dir = str(folder / "tokenizer")
        save_tokenizer(train_byte_bpe(texts[:500], vocab_size=2048), tokenizer_dir, eos_token="<|endoftext|>")
        eos = load_tokenizer(tokenizer_dir).eos_token_id
        assert eos is not None
        bare = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
        paths = write_files(texts, folder)
        ordered = [text for number in range(4) for text in texts[number::4]]
        size = sum(len(text.encode()) for text in texts) / 1e6
        ours_s, rival_s = [], []
        for turn in range(turns + 1):
            began = time.perf_counter()
            cache = build_cache_in_process(paths, str(folder / f"cache-{turn}"), TokenizeSettings(tokenizer_dir))
            ours_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            expected = rival(bare, ordered, eos)
            rival_s.append(time.perf_counter() - began)
            if turn == 0:
                length = cache.flat_field_length("input_ids")
                got = cache.get_flat_field_batch_sync("input_ids", [0], length)[0]
                assert np.array_equal(got, expected), "ours and the bare tokenizer disagree"
        ours_s, rival_s = ours_s[1:], rival_s[1:]  # The first turn warms caches and checks equality.
        stored = sum(f.stat().st_size for f in (folder / "cache-0").rglob("*") if f.is_file())
    rates = [size / seconds for seconds in ours_s]
    print(
        json.dumps(
            {
                "name": "levanter.token_cache.build",
                "value": round(statistics.median(rates), 3),
                "unit": "MB/s of text",
                "spread": [round(min(rates), 3), round(max(rates), 3)],
                "n": len(rates),
                "rival": "tokenizers.encode_batch in memory",
                "rival_value": round(statistics.median(size / seconds for seconds in rival_s), 3),
                "ratio": round(statistics.median(a / b for a, b in zip(ours_s, rival_s, strict=True)), 3),
                "mtok_per_s": round(statistics.median(len(expected) / 1e6 / seconds for seconds in ours_s), 3),
                "bytes_per_token": round(stored / len(expected), 3),
                "corpus_mb": round(size, 2),
                "rival_version": importlib.metadata.version("tokenizers"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cpus, python {platform.python_version()}",
                "lock_hash": lock_hash(),
            },
            sort_keys=True,
        )
    )


if __name__ == "__main__":
    main()
