import textwrap

import pytest
from marin.cli import main

SCRIPT = '''
import os
import click
from marin.execution import Artifact, ArtifactStep
from marin.experiment.cli import experiment_main

class Total(Artifact):
    total: int

class Diverged(RuntimeError):
    failure_category = "diverged"

def add(config):
    with open(os.path.join(config["out"], "sum.txt"), "w") as file:
        file.write(str(sum(config["numbers"])))
    return Total(total=sum(config["numbers"]))

def explode(config):
    raise Diverged("loss is nan")

def build(options):
    """Add numbers, and explode."""
    if options.corpus == "missing":
        raise FileNotFoundError("no corpus at 'missing'")
    if options.corpus == "odd":
        raise RuntimeError("odd corpus")
    total = ArtifactStep(name="total", artifact_type=Total, run=add,
        build_config=lambda ctx: {"numbers": [1, 2, options.n], "out": ctx.output_path})
    double = ArtifactStep(name="double", artifact_type=Total, run=add, deps=(total,),
        build_config=lambda ctx: {"numbers": [2], "out": ctx.output_path, "in": ctx.artifact_path(total)})
    arm = ArtifactStep(name="arm", run=explode, build_config=lambda ctx: ctx.output_path, deps=(total,))
    return [double, arm] if options.arm else double

seen = []
main = experiment_main(
    build,
    options=[click.Option(["--n"], type=int, default=3), click.Option(["--arm"], is_flag=True),
             click.Option(["--corpus"], default="")],
    allow_failed=["arm"],
    after_run=[lambda run: print(f"hook saw {len(run.summary.steps)} steps of {run.name}")],
)

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "sums.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    path = str(tmp_path / "store")
    monkeypatch.setenv("MARIN_PREFIX", path)
    return path


@pytest.fixture
def marin(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
            raise SystemExit(0)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return stopped.value.code or 0, captured.out, captured.err

    return call
