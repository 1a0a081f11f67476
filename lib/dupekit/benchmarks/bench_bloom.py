"""Bloom filter operations a second, beside rbloom; first, both must write the same bytes.

One million expected items at 1 %. Items one by one from Python for both, and by Arrow column for ours; rbloom has
none.
"""

import importlib
from importlib import metadata

import dupekit
import pyarrow as pa
from _harness import interleaved, pin_to_one_core, report, rivals, smoke_asked

ITEMS, RATE = 1_000_000, 0.01


def check_interchange(rival, hashes: list[int]) -> None:
    """Both packages must size, fill, write and read alike."""
    shapes = [(items, rate) for items in (1, 2, 3, 10, 77, 1_000, 12_345) for rate in (0.5, 0.3, 0.1, 0.01, 1e-4)]
    for items, rate in shapes:
        mine, theirs = dupekit.Bloom(items, rate), rival.Bloom(items, rate, hash_func=int)
        mine.update(hashes)
        theirs.update(hashes)
        assert mine.save_bytes() == theirs.save_bytes(), (items, rate)
        assert dupekit.Bloom.load_bytes(theirs.save_bytes()) == mine
        assert rival.Bloom.load_bytes(mine.save_bytes(), hash_func=int) == theirs


def main() -> None:
    """Check, time, print."""
    smoke = smoke_asked(__doc__)
    pin_to_one_core()
    with rivals("rbloom"):
        rival = importlib.import_module("rbloom")
        signed = [dupekit.hash_xxh3_128(str(n).encode()) - (1 << 127) for n in range(500)]
        check_interchange(rival, signed)
        count = 20_000 if smoke else 300_000
        column = dupekit.hash_xxh3_64_array([str(n) for n in range(count)])
        hashes = column.to_pylist()
        mine, theirs = dupekit.Bloom(ITEMS, RATE), rival.Bloom(ITEMS, RATE, hash_func=int)
        rounds = 3 if smoke else 9
        rates = interleaved(
            {
                "dupekit add_array": (count, lambda: mine.add_array(column)),
                "dupekit contains_array": (count, lambda: mine.contains_array(column)),
                "dupekit update": (count, lambda: mine.update(hashes)),
                "rbloom update": (count, lambda: theirs.update(hashes)),
                "dupekit in": (count, lambda: [h in mine for h in hashes]),
                "rbloom in": (count, lambda: [h in theirs for h in hashes]),
            },
            rounds,
        )
        both = pa.array([h in theirs for h in hashes])
        assert mine.contains_array(column).equals(both)
        report(
            name="bloom_add_array",
            value=round(rates["dupekit add_array"][0]),
            unit="items/s/core",
            spread=round(rates["dupekit add_array"][1], 3),
            n=rounds,
            rates={name: round(rate) for name, (rate, _) in rates.items()},
            update_over_rbloom=round(rates["dupekit update"][0] / rates["rbloom update"][0], 2),
            in_over_rbloom=round(rates["dupekit in"][0] / rates["rbloom in"][0], 2),
            same_bytes_as_rbloom=True,
            rival_version=metadata.version("rbloom"),
            settings={"expected_items": ITEMS, "false_positive_rate": RATE, "clock": "CPU time, one core"},
        )


if __name__ == "__main__":
    main()
