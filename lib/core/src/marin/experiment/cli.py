"""The command line of an experiment script, and what ``marin run`` finds in one.

A script exposes its steps as a function and wraps it once::

    def build(options) -> list[ArtifactStep]:
        ...

    main = experiment_main(build, options=[click.Option(["--data"], default="stdlib")])

    if __name__ == "__main__":
        main()

``python script.py --plan --data x`` and ``marin run script.py --plan -- --data x`` are then the same run. The graph
must be built wholly inside ``build``: it is called after the command line, and the versions on it, are known.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import click
from rigging.filesystem.prefix import marin_prefix

from marin._cli.logs import show_logs
from marin._cli.plan_text import explain_lines, plan_json, plan_lines
from marin._cli.problems import EXIT_OK, EXIT_STEP_FAILED, reported
from marin._cli.scripts import load_script
from marin._cli.tables import verdict_lines
from marin.errors import InvalidVersionError, MarinError, PlanRefusedError, ScriptError, UnknownStepError, UsageError
from marin.execution._files import check_prefix
from marin.execution.build_context import VersionCodex, build_context
from marin.execution.entry import Runnable, explain, lower_mixed, run
from marin.execution.gates import PlanGate
from marin.execution.graph import plan_graph
from marin.execution.lazy import ArtifactStep
from marin.execution.outcomes import RunSummary
from marin.execution.reporter import ConsoleReporter, QuietReporter
from marin.execution.step_spec import StepSpec
from marin.experiment.claims import check_hypotheses, conclude_hypotheses, declare_hypotheses
from marin.ledger.hypotheses import Hypothesis
from marin.policy.gate import policy_gate

_OWN_PACKAGES = ("marin.", "rigging.", "fray.", "zephyr.", "levanter.", "haliax.", "dupekit.")
Built = Runnable | Sequence[Runnable] | Mapping[str, Runnable]


@dataclass(frozen=True)
class ExperimentRun:
    """What hooks get after a run.

    Attributes:
        name: Name of the experiment.
        options: The script's own options.
        handles: What ``build`` returned, as a list.
        summary: What the run did.
        prefix: Root of the store.
    """

    name: str
    options: SimpleNamespace
    handles: tuple[Runnable, ...]
    summary: RunSummary
    prefix: str


@dataclass(frozen=True)
class RunRequest:
    """The options that every experiment has.

    Attributes:
        plan: Print the graph and do nothing else; the store is not touched.
        dry_run: Say what would run, from the statuses; writes nothing.
        force: Steps to rebuild.
        max_concurrent: Steps at a time.
        prefix: Root of the store.
        as_json: Print the result as JSON on stdout.
        keep_going: Whether independent branches go on after a failure.
        version: Version of steps that leave it out.
        override: ``{step name: version}``.
        policy: Policy file; None takes ``./policy.toml``, else the shipped one.
        mirrors: Roots of other stores that may have what mirrored steps make.
        allow_cross_region: Why data may cross regions.
    """

    plan: bool = False
    dry_run: bool = False
    force: tuple[str, ...] = ()
    max_concurrent: int | None = None
    prefix: str | None = None
    as_json: bool = False
    keep_going: bool = True
    version: str | None = None
    override: Mapping[str, str] = field(default_factory=dict)
    policy: str | None = None
    mirrors: tuple[str, ...] = ()
    allow_cross_region: str = ""


def run_options() -> list[click.Option]:
    """The options of ``RunRequest`` for a click command."""
    return [
        click.Option(["--plan"], is_flag=True, help="Print the graph and what would run. Does not touch the store."),
        click.Option(["--dry-run"], is_flag=True, help="Say run or skip for each step, from what is in the store."),
        click.Option(["--force"], multiple=True, metavar="STEP", help="Rebuild this step (repeatable)."),
        click.Option(["--max-concurrent"], type=click.IntRange(min=1), metavar="N", help="Steps at a time."),
        click.Option(["--prefix"], metavar="P", help="Root of the store [MARIN_PREFIX or ./marin_store]."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON on stdout."),
        click.Option(["--keep-going/--fail-fast"], default=True, help="Go on with independent steps after a failure."),
        click.Option(["--version"], metavar="V", help="Version of steps that leave it out."),
        click.Option(["--override"], multiple=True, metavar="NAME=V", help="Version of one step (repeatable)."),
        click.Option(["--mirror", "mirrors"], multiple=True, metavar="P", help="Store to copy from (repeatable)."),
        click.Option(["--allow-cross-region"], default="", metavar="WHY", help="Let data cross regions, on record."),
        click.Option(
            ["--policy"], metavar="FILE", help="What may be made from what [./policy.toml, else the shipped]."
        ),
    ]


def request_from(values: Mapping[str, Any]) -> RunRequest:
    """The request from parsed options.

    Raises:
        UsageError: A malformed or repeated ``--override``, or options that exclude one another.
    """
    if values["plan"] and values["dry_run"]:
        raise UsageError("--plan and --dry-run exclude one another.", hint="Leave one of them out.")
    overrides: dict[str, str] = {}
    for item in values["override"]:
        name, equals, version = item.partition("=")
        if not equals or not name or not version or name in overrides:
            raise UsageError(f"bad --override {item!r}; expected NAME=VERSION, each name once.", hint="Fix the option.")
        overrides[name] = version
    return RunRequest(
        plan=values["plan"],
        dry_run=values["dry_run"],
        force=tuple(values["force"]),
        max_concurrent=values["max_concurrent"],
        prefix=values["prefix"],
        as_json=values["as_json"],
        keep_going=values["keep_going"],
        version=values["version"],
        override=overrides,
        policy=values["policy"],
        mirrors=tuple(values["mirrors"]),
        allow_cross_region=values["allow_cross_region"],
    )


class Experiment:
    """A build function with its command line. Made by ``experiment_main``; call it to run the command line.

    Attributes:
        name: Name of the experiment.
        allow_failed: Names of steps whose failure is expected and does not fail the run.
        hypotheses: What it claims before it runs.
    """

    def __init__(
        self,
        build: Callable[[SimpleNamespace], Built],
        *,
        options: Sequence[click.Option] = (),
        name: str | None = None,
        allow_failed: Sequence[str] = (),
        after_run: Sequence[Callable[[ExperimentRun], None]] = (),
        default_version: str = "auto",
        hypotheses: Sequence[Hypothesis] = (),
    ) -> None:
        self.build = build
        self.name = name or build.__module__.rpartition(".")[2]
        self.allow_failed = tuple(allow_failed)
        self.after_run = list(after_run)
        self.hypotheses = tuple(hypotheses)
        self._options = list(options)
        self._default_version = default_version

    def command(self, *, with_run_options: bool, prog: str = "") -> click.Command:
        """The click command: the script's own options, with or without those that every experiment has."""
        params: list[click.Parameter] = [*self._options]
        if with_run_options:
            taken = {name for option in self._options for name in option.opts}
            params.extend(option for option in run_options() if not taken & set(option.opts))
        return click.Command(prog or self.name, params=params, help=(self.build.__doc__ or "").strip() or None)

    def parse(self, arguments: Sequence[str], *, with_run_options: bool) -> tuple[SimpleNamespace, dict[str, Any]]:
        """The script's own options, and those of the run.

        Raises:
            click.UsageError: The command line does not fit.
        """
        command = self.command(with_run_options=with_run_options)
        with command.make_context(command.name, list(arguments)) as context:
            values = dict(context.params)
        own = {option.name for option in self._options}
        options = SimpleNamespace(**{name: value for name, value in values.items() if name in own})
        return options, {name: value for name, value in values.items() if name not in own}

    def handles(self, options: SimpleNamespace, request: RunRequest) -> tuple[Runnable, ...]:
        """Build the graph.

        Raises:
            UsageError: An override that no step asked for.
            ScriptError: ``build`` raised something unexpected, or returned no steps.
        """
        try:
            codex = VersionCodex(request.version or self._default_version, request.override)
        except InvalidVersionError as error:
            raise UsageError(f"bad version: {error}", hint=error.hint) from None
        with build_context(codex):
            try:
                built = self.build(options)
            except (MarinError, click.ClickException, OSError):
                raise
            except Exception as error:
                if type(error).__module__.startswith(_OWN_PACKAGES):
                    raise UsageError(str(error), hint=str(getattr(error, "hint", ""))) from error
                reason = f"build raised {type(error).__name__}: {error}"
                hint = "Check the options; call build() in Python to see more."
                raise ScriptError(self.name, reason, hint=hint) from error
        if unused := codex.unused_overrides():
            raise UsageError(f"--override names steps that take no default version: {unused}.", hint="Check the names.")
        return _as_handles(self.name, built)

    def execute(self, options: SimpleNamespace, request: RunRequest) -> int:
        """Plan, explain or run.

        Returns:
            The exit code: 0 or 1.
        Raises:
            MarinError: Bad input or a refused plan; of a plan that a policy refuses, ``--json`` prints the refusals.
        """
        try:
            return self._execute(options, request)
        except PlanRefusedError as error:
            if request.as_json:
                refusals = [refusal.to_json() for refusal in error.refusals]
                _emit({"ok": False, "policy": error.policy, "refusals": refusals})
            raise

    def _execute(self, options: SimpleNamespace, request: RunRequest) -> int:
        gate = policy_gate(request.policy)
        handles = self.handles(options, request)
        prefix = check_prefix(request.prefix or marin_prefix())
        if self.hypotheses:
            lowered = lower_mixed(handles)
            graph = plan_graph([lowered[handle] for handle in handles], prefix)
            check_hypotheses(self.hypotheses, graph.steps)
        if request.plan:
            return self._print_plan(handles, prefix, request, gate)
        if request.dry_run:
            outcomes = explain(*handles, prefix=prefix, force=request.force, gate=gate).steps
            _emit([item.to_json() for item in outcomes] if request.as_json else explain_lines(outcomes))
            return EXIT_OK
        allowed = self._allowed(handles)
        show_logs()
        for note in declare_hypotheses(prefix, self.hypotheses):
            click.echo(f"note: {note}", err=True)
        summary = run(
            *handles,
            max_concurrent=request.max_concurrent,
            force=request.force,
            allow_failed=allowed,
            prefix=prefix,
            keep_going=request.keep_going,
            reporter=QuietReporter() if request.as_json else ConsoleReporter(),
            gate=gate,
        )
        verdicts = conclude_hypotheses(prefix, self.hypotheses, summary)
        if not request.as_json:
            click.echo("".join(f"{line}\n" for line in verdict_lines(verdicts)), err=True, nl=False)
        finished = ExperimentRun(self.name, options, handles, summary, prefix)
        for hook in self.after_run:
            hook(finished)
        if request.as_json:
            steps = [item.to_json() for item in summary.steps]
            _emit(
                {
                    "ok": summary.ok,
                    "prefix": prefix,
                    "seconds": round(summary.seconds, 3),
                    "peak_memory_bytes": summary.peak_memory_bytes,
                    "steps": steps,
                    "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
                }
            )
        return EXIT_OK if summary.ok else EXIT_STEP_FAILED

    def _allowed(self, handles: Sequence[Runnable]) -> list[str]:
        """Allowed failures that this graph has; options may leave an arm out."""
        names = {name for spec in lower_mixed(handles).values() for name in (spec.name, spec.label)}
        return [name for name in self.allow_failed if name in names]

    def _print_plan(self, handles: Sequence[Runnable], prefix: str, request: RunRequest, gate: PlanGate) -> int:
        lowered = lower_mixed(handles)
        graph = plan_graph([lowered[handle] for handle in handles], prefix)
        for name in request.force:
            if not any(name in (spec.name, spec.label) for spec in graph.steps):
                raise UnknownStepError(name, {spec.name for spec in graph.steps}, option="--force")
        report = gate(graph)
        if report.refusals:
            raise PlanRefusedError(report.refusals, report.policy)
        shown = plan_json(graph, request.force, report) if request.as_json else plan_lines(graph, request.force, report)
        _emit(shown)
        return EXIT_OK

    def __call__(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the script's command line and exit.

        Raises:
            SystemExit: With 0, 1, 2 or 3.
        """
        arguments = sys.argv[1:] if arguments is None else arguments
        with reported():
            try:
                options, values = self.parse(arguments, with_run_options=True)
                defaults = RunRequest()
                for option in run_options():
                    assert option.name is not None
                    values.setdefault(option.name, getattr(defaults, option.name))
                code = self.execute(options, request_from(values))
            except click.exceptions.Exit as stop:
                sys.exit(stop.exit_code)
            except click.ClickException as error:
                error.show()
                sys.exit(error.exit_code)
        sys.exit(code)


def _emit(value: Any) -> None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        click.echo("\n".join(value))
    else:
        click.echo(json.dumps(value, indent=1, sort_keys=True))


def _as_handles(name: str, built: Any) -> tuple[Runnable, ...]:
    if isinstance(built, ArtifactStep | StepSpec):
        return (built,)
    if isinstance(built, Mapping):
        built = built.values()
    handles = tuple(built) if isinstance(built, Iterable) else ()
    if not handles or not all(isinstance(item, ArtifactStep | StepSpec) for item in handles):
        reason = f"build returned {type(built).__name__}, expected steps"
        raise ScriptError(name, reason, hint="Return a list of ArtifactStep.")
    return handles


def load_experiment(path: str) -> Experiment:
    """The experiment that a script exposes as ``main``.

    Raises:
        ScriptError: The script cannot be imported, or has none.
    """
    experiment = getattr(load_script(path), "main", None)
    if not isinstance(experiment, Experiment):
        raise ScriptError(path, "it has no experiment named 'main'")
    return experiment


def experiment_main(
    build: Callable[[SimpleNamespace], Built],
    *,
    options: Sequence[click.Option] = (),
    name: str | None = None,
    allow_failed: Sequence[str] = (),
    after_run: Sequence[Callable[[ExperimentRun], None]] = (),
    default_version: str = "auto",
    hypotheses: Sequence[Hypothesis] = (),
) -> Experiment:
    """Wrap a build function so that the script has a command line and ``marin run`` finds its steps.

    Args:
        build: Gets the script's options (attributes by name) and returns the steps that are wanted.
        options: The script's own click options.
        name: Name of the experiment; the module's by default.
        allow_failed: Names of steps whose failure is expected: it is recorded and shown, and the run is still a
            success.
        after_run: Called in order after every run, also one with failures (for a report, say).
        default_version: Version of steps that leave it out, unless ``--version`` is given.
        hypotheses: What the experiment claims, each with the ``step`` and the ``metric`` that decide. They are written
            down before the first run and judged after every run; ``marin hypotheses`` lists them.
    Returns:
        The experiment. Bind it to the name ``main``.
    Example:
        >>> main = experiment_main(lambda options: [ArtifactStep.adopt("raw", "2026.12.01", "/data")], name="demo")
        >>> main.name
        'demo'
    """
    return Experiment(
        build,
        options=options,
        name=name,
        allow_failed=allow_failed,
        after_run=after_run,
        default_version=default_version,
        hypotheses=hypotheses,
    )
