"""The public names, and how light the package is."""

import importlib
import pkgutil
import resource
import subprocess
import sys

import pytest
import rigging

PUBLIC = """
Clock CpuConfig Deadline Duration GpuConfig JobIdentity Lease ManualClock Progress Provenance ResourceConfig
RiggingError StoragePath SystemClock Timestamp TpuConfig atomic_rename canonical_json conditional_object
configure_logging marin_prefix marin_region parse_bytes prefix_join redact_string redact_value
resolve_secret_spec sha256_bytes sha256_file short_hash write_bytes_atomic write_json_atomic write_text_atomic
""".split()

BANNED = ("fsspec", "yaml", "asyncio", "requests", "aiohttp", "numpy", "botocore", "google.cloud", "click", "ctypes")
BUDGET_S = 0.10
SLACK = 3


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(rigging.__path__, "rigging.")]
    return ["rigging", *sorted(found)]


def test_the_public_names_are_these():
    assert sorted(PUBLIC) == rigging.__all__ == dir(rigging)
    for name in PUBLIC:
        assert getattr(rigging, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        rigging.no_such_name  # noqa: B018


def test_every_declared_name_exists_and_is_sorted():
    for name in modules():
        module = importlib.import_module(name)
        declared = getattr(module, "__all__", [])
        assert list(declared) == sorted(declared), name
        for public in declared:
            assert hasattr(module, public), f"{name}.{public}"


def test_every_public_definition_has_a_docstring():
    missing = []
    for name in modules():
        module = importlib.import_module(name)
        if not module.__doc__:
            missing.append(name)
        for key, value in vars(module).items():
            if not key.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
                if not getattr(value, "__doc__", None):
                    missing.append(f"{name}.{key}")
    assert missing == []


def cpu_seconds(code: str) -> tuple[float, str]:
    """Return processor time of a fresh interpreter running ``code``, which a busy machine does not inflate as much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.strip()


@pytest.mark.slow
def test_every_module_imports_alone_within_its_budget_and_loads_nothing_heavy():
    for name in modules():
        code = f"import sys; import {name}; print([m for m in {BANNED!r} if m in sys.modules])"
        best, loaded = cpu_seconds(code)
        for _ in range(4):
            if best >= BUDGET_S * SLACK:
                best = min(best, cpu_seconds(code)[0])
        assert loaded == "[]", f"{name} loads {loaded}"
        assert best < BUDGET_S * SLACK, f"{name} takes {best:.3f} s"


def test_the_environment_table_is_complete():
    """Only ``_env`` reads variables of ours, so its table is the documentation."""
    import os
    import re

    from rigging import _env

    root = os.path.dirname(rigging.__file__)
    offenders = []
    for folder, _, files in os.walk(root):
        for file in files:
            if file.endswith(".py") and file != "_env.py":
                with open(os.path.join(folder, file), encoding="utf-8") as stream:
                    if re.search(r"os\.environ\.get|os\.getenv|os\.environ\[", stream.read()):
                        offenders.append(file)
    assert offenders == []
    defined = [value for value in vars(_env).values() if isinstance(value, _env.Variable)]
    assert list(_env.TABLE) == defined
    assert len({variable.name for variable in defined}) == len(defined)
