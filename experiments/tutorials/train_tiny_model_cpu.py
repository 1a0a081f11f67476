"""Raw text to a trained, evaluated model on two cores, with every step on record.

    scripts/demo                                            set up and run everything
    marin run experiments/tutorials/train_tiny_model_cpu.py --plan
    marin run experiments/tutorials/train_tiny_model_cpu.py -- --data 'path:corpus/*.jsonl.gz' --licence CC-BY-4.0

The corpus is the Python standard library that is already on the machine. A second arm trains with an absurd learning
rate on purpose: it diverges, is recorded as a failure with that reason, and stands on the report beside the good one.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import click
from marin.datakit.sources import SourceKind, digest_inputs, list_inputs, parse_source
from marin.evaluation.results import BitsPerByteResult
from marin.execution import ArtifactStep
from marin.experiment.cli import ExperimentRun, experiment_main
from marin.experiment.data import consolidated, documents, near_duplicates, normalized, tokenized, tokenizer
from marin.experiment.evaluation import bits_per_byte, samples
from marin.experiment.train import exported, train_lm
from marin.reports.run_report import write_run_report
from marin.training.artifacts import LevanterCheckpoint
from marin.training.recipe import AdamWRecipe, LmRecipe, ModelShape

NAME = "tutorial"
TITLE = "A tiny model, from raw text to report"
HOT_LEARNING_RATE = 30.0
PROMPTS = ("def __init__(self", "import os\n", "class ", '"""Return ', "for i in range(")

SCALES = {
    "demo": (4096, LmRecipe()),
    "smoke": (
        512,
        LmRecipe(
            model=ModelShape(
                hidden_dim=64, intermediate_dim=128, num_layers=2, num_heads=2, num_kv_heads=2, seq_len=64
            ),
            batch_size=8,
            num_steps=40,
        ),
    ),
}
SMOKE_FILES = 60

OPTIONS = [
    click.Option(["--data"], default="stdlib", show_default=True, help="stdlib, path:GLOB or hf:ID[@REVISION]."),
    click.Option(["--licence"], help="SPDX licence of the data, where the source does not say it."),
    click.Option(["--text-key"], default="text", show_default=True, help="Field of the text in a record."),
    click.Option(["--on-bad-line"], type=click.Choice(["fail", "skip"]), default="fail", show_default=True),
    click.Option(["--scale"], type=click.Choice(sorted(SCALES)), default="demo", show_default=True),
    click.Option(["--vocab-size"], type=click.IntRange(min=257), help="Entries of the tokeniser."),
    click.Option(["--steps"], type=click.IntRange(min=1), help="Optimiser steps."),
    click.Option(["--learning-rate"], type=float, help="Peak learning rate of the good arm."),
    click.Option(["--seed"], type=int, default=0, show_default=True, help="Root of initialisation and data order."),
]


def build(options: SimpleNamespace) -> list[ArtifactStep]:
    """From a source of text to a measured model and its samples."""
    vocab_size, recipe = SCALES[options.scale]
    vocab_size = options.vocab_size or vocab_size
    recipe = replace(recipe, seed=options.seed, num_steps=options.steps or recipe.num_steps)
    if options.learning_rate is not None:
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=options.learning_rate))
    hot = replace(recipe, optimizer=AdamWRecipe(learning_rate=HOT_LEARNING_RATE, warmup=0.0, max_grad_norm=None))

    source = parse_source(options.data, licence=options.licence)
    digest = digest_inputs(list_inputs(source.location)) if source.kind is SourceKind.PATH else ""
    raw = documents(
        f"{NAME}/documents",
        source,
        input_digest=digest,
        text_key=options.text_key,
        on_bad_line=options.on_bad_line,
        max_files=SMOKE_FILES if options.scale == "smoke" and source.kind is SourceKind.STDLIB else None,
    )
    normal = normalized(f"{NAME}/normalized", raw)
    duplicates = near_duplicates(f"{NAME}/duplicates", normal)
    corpus = consolidated(f"{NAME}/corpus", normal, duplicates)
    bpe = tokenizer(f"{NAME}/tokenizer", corpus, vocab_size=vocab_size)
    tokens = tokenized(f"{NAME}/tokens", corpus, bpe)
    good = train_lm(f"{NAME}/model", tokens, bpe, recipe)
    diverging = train_lm(f"{NAME}/model-hot", tokens, bpe, hot)
    export = exported(f"{NAME}/export", good, bpe, recipe.model)
    measured = bits_per_byte(f"{NAME}/bits-per-byte", export, corpus, seq_len=recipe.model.seq_len, max_bytes=250_000)
    written = samples(f"{NAME}/samples", export, PROMPTS, max_new_tokens=min(96, recipe.model.seq_len // 2))
    return [measured, written, diverging]


def report(run: ExperimentRun) -> None:
    """Write ``report.html`` and print the headline numbers."""
    figures = []
    for item in run.summary.steps:
        if item.ok and item.name == f"{NAME}/bits-per-byte":
            found = BitsPerByteResult.load(item.path)
            figures.append(("held-out text", f"{found.bits_per_byte:.3f}", f"bits per byte, {found.num_bytes:,} bytes"))
        if item.ok and item.name == f"{NAME}/model":
            model = LevanterCheckpoint.load(item.path)
            figures.append(("training loss", f"{model.final_loss:.3f}", f"nats per token, step {model.step}"))
    path = f"{run.prefix}/reports/{NAME}/report.html"
    write_run_report(run.summary, path, title=TITLE, command="scripts/demo", figures=figures)
    for label, value, note in figures:
        click.echo(f"{label}: {value} ({note})", err=True)
    click.echo(f"report: {path}", err=True)


main = experiment_main(build, options=OPTIONS, name=NAME, allow_failed=[f"{NAME}/model-hot"], after_run=[report])

if __name__ == "__main__":
    main()
