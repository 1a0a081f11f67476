"""What the core promises: names, lightness, and who may import whom."""

import ast
import os
import pkgutil
import subprocess
import sys

import marin
import marin.errors
import marin.execution
import marin.ledger
import marin.policy
import pytest

PUBLIC = {
    "marin.execution": [
        "Artifact", "ArtifactRecord", "ArtifactStep", "AttemptRecord", "FailureCategory", "OUT", "Outcome",
        "RemoteCallable", "RetryPolicy", "RunSummary", "SCRATCH", "StepAttempt", "StepContext", "StepFailedError",
        "StepOutcome", "StepSpec", "VersionCodex", "apply", "describe_drift", "explain", "lower", "materialized_config",
        "read_record", "remote", "resolve", "run", "step_attempt",
    ],
    "marin.ledger": ["Explanation", "FailureGroup", "Ledger", "StepEntry", "Verification", "verify"],
    "marin.policy": [
        "Judgement", "KindRules", "Policy", "PolicyNode", "SourceTerms", "Waiver", "declared_sources", "judge",
        "load_policy", "parse_policy", "policy_gate",
    ],
}  # fmt: skip
BANNED = ("jax", "pyarrow", "torch", "numpy", "click", "zephyr", "levanter", "haliax", "dupekit", "duckdb")


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module):
    loaded = sys.modules[module]
    assert sorted(loaded.__all__) == sorted(PUBLIC[module])
    for name in PUBLIC[module]:
        assert getattr(loaded, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        marin.execution.nonsense  # noqa: B018


def test_a_function_of_the_package_is_not_hidden_by_a_module_of_that_name():
    for room in (marin.execution, marin.ledger, marin.policy):
        modules = {item.name for item in pkgutil.iter_modules(room.__path__)}
        assert not modules & set(PUBLIC[room.__name__]) - {"ledger"}


def fresh(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_engine_is_light():
    code = (
        "import time; begun = time.process_time()\n"
        "import marin.execution; first = time.process_time() - begun\n"
        "from marin.execution import run, remote, ArtifactStep; import sys\n"
        f"print(first, [name for name in {BANNED!r} if name in sys.modules])"
    )
    seconds, _, banned = fresh(code).partition(" ")
    assert float(seconds) < 3 * 0.15
    assert banned.strip() == "[]"


@pytest.mark.parametrize("module", ["marin.ledger.ledger", "marin.cli", "marin.experiment.cli", "marin.policy.gate"])
def test_ledger_and_command_line_load_nothing_heavy(module):
    banned = [name for name in BANNED if name != "click"]
    assert fresh(f"import sys, {module}; print([name for name in {banned!r} if name in sys.modules])").strip() == "[]"


def test_help_does_not_load_the_engine():
    code = "import sys, marin.cli; print('marin.execution.step_runner' in sys.modules)"
    assert fresh(code).strip() == "False"


def imported(path):
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_execution_and_ledger_import_only_what_is_below_them():
    root = os.path.dirname(marin.__file__)
    allowed = {
        "execution": ("marin.errors", "marin.execution", "rigging", "fray"),
        "ledger": ("marin.errors", "marin.execution", "marin.ledger", "rigging", "duckdb"),
        "policy": ("marin.errors", "marin.execution", "marin.policy", "rigging"),
    }
    for room, prefixes in allowed.items():
        for folder, _, files in os.walk(os.path.join(root, room)):
            for file in files:
                if not file.endswith(".py"):
                    continue
                for name in imported(os.path.join(folder, file)):
                    own = name.partition(".")[0] in ("marin", "rigging", "fray", "zephyr", "levanter", "duckdb", "jax")
                    assert not own or name.startswith(prefixes), f"{room}/{file} imports {name}"
