"""The public surface, what importing it costs, and what it may not pull in."""

import json
import pathlib

import levanter
import pytest

SNAPSHOT = pathlib.Path(__file__).with_name("api_snapshot.txt")
BANNED = ("wandb", "transformers", "torch", "zephyr", "fray", "iris", "tensorboardX", "trackio")
PROBE = """
import json, sys, time
import jax
start = time.process_time()
import {module}
json.dump({{"seconds": time.process_time() - start, "modules": sorted(sys.modules)}}, sys.stdout)
"""


def test_the_public_names_are_those_of_the_snapshot():
    assert "\n".join(levanter.__all__) + "\n" == SNAPSHOT.read_text()
    assert dir(levanter) == levanter.__all__
    for name in levanter.__all__:
        assert getattr(levanter, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = levanter.nothing


@pytest.mark.slow
@pytest.mark.parametrize(("module", "seconds"), [("levanter.models.llama", 0.6), ("levanter.main.train_lm", 2.0)])
def test_imports_are_light(module, seconds, run_python):
    """Budgets are CPU seconds above jax on a quiet machine; three times that is allowed for a busy one."""
    result = run_python("-c", PROBE.format(module=module))
    assert result.returncode == 0, result.stderr
    probe = json.loads(result.stdout)
    assert probe["seconds"] < 3 * seconds
    assert not [name for name in BANNED if name in probe["modules"]]


def test_the_root_import_loads_nothing(run_python):
    result = run_python("-c", "import sys, levanter; print('jax' in sys.modules, 'numpy' in sys.modules)")
    assert result.stdout.split() == ["False", "False"]
