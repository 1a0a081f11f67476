"""The promised names, and what importing them costs."""

import subprocess
import sys

import zephyr
from zephyr import counters, dataset, errors, expr

PUBLIC = [
    "BadRecordError",
    "Dataset",
    "Expr",
    "Policy",
    "Quarantine",
    "ShardInfo",
    "ZephyrContext",
    "ZephyrError",
    "ZephyrExecutionResult",
    "col",
    "compute_plan",
    "counters",
    "lit",
    "load_zip_members",
]
DATASET_METHODS = [
    "aggregate",
    "batch",
    "count",
    "deduplicate",
    "distinct",
    "filter",
    "flat_map",
    "from_files",
    "from_iterable",
    "from_list",
    "from_source",
    "group_by",
    "join",
    "load_csv",
    "load_file",
    "load_jsonl",
    "load_parquet",
    "load_text",
    "load_txt",
    "load_vortex",
    "load_webdataset",
    "map",
    "map_batches",
    "map_shard",
    "reduce",
    "reshard",
    "sample",
    "select",
    "sort",
    "sort_by",
    "sorted_merge_join",
    "take",
    "take_per_shard",
    "union",
    "window",
    "window_by",
    "write_binary",
    "write_jsonl",
    "write_levanter_cache",
    "write_parquet",
    "write_to",
    "write_vortex",
]


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_public_names_are_these() -> None:
    assert zephyr.__all__ == PUBLIC == dir(zephyr)
    assert all(getattr(zephyr, name) is not None for name in PUBLIC)
    assert zephyr.counters is counters
    assert zephyr.Dataset is dataset.Dataset
    assert zephyr.col is expr.col
    assert zephyr.BadRecordError is errors.BadRecordError


def test_dataset_methods_are_these_and_documented() -> None:
    methods = sorted(name for name in dir(dataset.Dataset) if not name.startswith("_") and name != "pipeline")
    assert methods == DATASET_METHODS
    assert all(getattr(dataset.Dataset, name).__doc__ for name in methods)


def test_an_unknown_name_is_an_attribute_error() -> None:
    try:
        _ = zephyr.nothing  # type: ignore[attr-defined]
    except AttributeError as error:
        assert "nothing" in str(error)
    else:
        raise AssertionError("must raise")


def test_importing_zephyr_is_cheap_and_pulls_in_nothing_heavy() -> None:
    code = "import sys, time; t = time.process_time(); import zephyr; print(time.process_time() - t); {}"
    assert float(fresh(code.format("assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules"))) < 3 * 0.05
    banned = "assert not {'polars', 'pandas', 'ray', 'jax', 'torch', 'iris', 'duckdb'} & set(sys.modules)"
    heavy = "import zephyr.dataset, zephyr.context; " + banned
    fresh("import sys; " + heavy)


def test_the_dataset_module_imports_within_its_budget() -> None:
    best = min(
        float(fresh("import time; t = time.process_time(); import zephyr.dataset; print(time.process_time() - t)"))
        for _ in range(3)
    )
    assert best < 0.25


def test_a_worker_uses_the_allocator_that_gives_memory_back() -> None:
    shown = "print(pa.default_memory_pool().backend_name, *pa.supported_memory_backends())"
    used, *supported = fresh(f"import zephyr.worker, pyarrow as pa; {shown}").split()
    assert used == "jemalloc" or "jemalloc" not in supported
