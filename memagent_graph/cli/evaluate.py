"""`memagent eval` and `memagent train`: measure a reader on tasks, and train it on them."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.options import Reads, check_server, parse_fields, takes_options
from memagent_graph.cli.terminal import report_errors
from memagent_graph.errors import install_hint
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from memagent_graph.evaluation.run import SampleResult
    from memagent_graph.evaluation.samples import Task

_EVALUATE = """Measure a model, with MemAgent and without.

Tasks: qa:FILE asks the questions of a file of HotpotQA, SQuAD or Natural Questions, masked:FOLDER
asks what was masked in sentences of your own documents, ruler:FILE has samples that RULER wrote.
Methods: memagent, whole, truncate, bm25, map_reduce, refine.

Examples:

\b
  memagent eval --tasks qa:hotpot.json --lengths 8k,128k,1m --out results/
  memagent eval --tasks ruler:niah_single_1.jsonl --out results/
  memagent eval --model openai:gpt-4o --methods memagent,bm25 --out o/

Every sample is a line of OUT/samples.jsonl; what is there is not asked again. OUT gets a
report.md.
The score is of the final answer: what the reply boxes, or the whole of it.

Exit codes: 0 done, 1 some samples failed, 2 wrong usage, 130 interrupted.
"""
_MEASURED = "memagent: stopped. The samples so far are kept. To continue:\n  {command}"


@takes_options
def evaluate(
    *,
    out: Annotated[Path | None, typer.Option(help="Folder for samples and table.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Names of tasks with their files, such as qa:hotpot.json."),
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(help="Lengths in tokens, such as 8k,128k,3.5m."),
    ] = "8k,32k",
    methods: Annotated[
        str, typer.Option(help="Names of methods, separated by commas.")
    ] = "memagent",
    samples: Annotated[
        int, typer.Option(min=1, help="Samples for each task and length, at most.")
    ] = 20,
    essays: Annotated[
        Path | None, typer.Option(help="File or folder of texts to fill documents with.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the samples and of the order of questions.")
    ] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples to run at once.")] = 8,
    reads: Reads,
    model_args: Annotated[
        str | None,
        typer.Option(help="Arguments of the model as JSON, such as '{\"max_model_len\": 8192}'."),
    ] = None,
) -> None:
    """Replaced by `_EVALUATE` below."""
    from memagent_graph.evaluation import run
    from memagent_graph.evaluation.methods import make_method
    from memagent_graph.evaluation.samples import parse_length
    from memagent_graph.rl.recorder import CallRecord
    from memagent_graph.text.tokens import load_tokenizer

    if out is None:
        raise typer.BadParameter("Name a folder for the results: --out DIR.")
    with report_errors(_MEASURED):
        settings = reads.make_config()
        wanted, ways = [*map(parse_length, lengths.split(","))], methods.split(",")
        made = _tasks(tasks, essays)
        reader = reads.make_reader(settings, model_args=model_args)
        check_server(reader)
        if reads.tokenizer is not None:
            reader.identity = replace(reader.identity, tokenizer=load_tokenizer(reads.tokenizer))
        for method in ways:
            make_method(method, reader, settings)
        out.mkdir(parents=True, exist_ok=True)
        record = CallRecord(out / "calls.jsonl")
        running = run.evaluate(
            reader,
            made,
            lengths=wanted,
            methods=ways,
            samples=samples,
            out=out,
            config=settings,
            seed=seed,
            concurrency=concurrency,
            calls=record,
        )
        total = len([*run.places(made, wanted, samples)]) * len(ways)
        with closing(record):
            asyncio.run(_through(running, total))
        results = run.load(out)
        title = (
            f"{reader.identity.name}, chunks of {settings.chunk_tokens}, "
            f"memory of {settings.memory_tokens} tokens"
        )
        print(run.tabulate(results), end="")
        run.write_report(out, results, title)
        failed = sum(result.error is not None for result in results)
        if failed:
            found = plural(failed, "sample")
            print(f"memagent: {found} failed: see {out / 'samples.jsonl'}", file=sys.stderr)
            raise typer.Exit(1)


def _tasks(names: str | None, essays: Path | None) -> list[Task]:
    """The tasks that were named; one for each kind of samples in a file of RULER's."""
    from memagent_graph.evaluation.questions import ruler_tasks
    from memagent_graph.evaluation.tasks import make_task
    from memagent_graph.text.files import open_source

    text = open_source(essays) if essays else None
    if not names:
        raise typer.BadParameter("Name a task, such as --tasks qa:FILE.")
    made: list[Task] = []
    for name in names.split(","):
        file = name.removeprefix("ruler:")
        made += ruler_tasks(file) if file not in {name, ""} else [make_task(name, text)]
    return made


async def _through(running: AsyncIterator[SampleResult], total: int) -> None:
    """Run to the end behind a progress bar, which counts what is new."""
    from tqdm import tqdm

    with tqdm(total=total, unit="sample", disable=None) as bar:
        async for result in running:
            bar.set_postfix_str(f"{result.id} {result.method}")
            bar.update()


evaluate.__doc__ = _EVALUATE


_TRAIN = """Train a model to read, by reinforcement learning.

RUN is a YAML file with the fields of `memagent_graph.rl.TrainingSettings`;
`--set FIELD=VALUE` overrides one, or gives all of them without a file.

Examples:

\b
  memagent train run.yaml
  memagent train run.yaml --set learning_rate=3e-6 --set out=second
  memagent train --set model=MODEL --set engine=vllm --set out=first
  memagent train --set tasks='[masked:texts/]' --set model=NAME --set out=ours
  memagent train run.yaml --set traces='[production.jsonl]'

`masked:contracts/` makes the questions itself, without labels: a sentence of the documents with a
name, number or date masked.

A run that was stopped continues where it was when the same command is given again. OUT gets
`metrics.jsonl`, checkpoints, and the trained model in `model/`. On several GPUs:
`accelerate launch -m memagent_graph train run.yaml`.

Exit codes: 0 done, 1 training failed, 2 wrong usage, 130 stopped.
"""
_TRAINED = "memagent: stopped. What was trained is kept. To continue:\n  {command}"


def train(
    run: Annotated[
        Path | None, typer.Argument(help="YAML file with the settings.", show_default=False)
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting FIELD=VALUE, in YAML. Repeat it for more."),
    ] = None,
) -> None:
    """Replaced by `_TRAIN` below."""
    with report_errors(_TRAINED):
        from memagent_graph.rl.grpo import TrainingSettings

        settings = TrainingSettings.model_validate(parse_fields(run, fields))
        with install_hint('Training needs: pip install "memagent-graph[rl]"'):
            from memagent_graph.rl.training import Training
        training = Training(settings)
        stopped = False

        def stop(*_: object) -> None:
            nonlocal stopped
            if stopped:
                raise KeyboardInterrupt
            stopped = True
            print(
                "memagent: stopping after this iteration; again to stop at once.", file=sys.stderr
            )
            training.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        asyncio.run(training.run(_print))
        if stopped:
            raise KeyboardInterrupt
        if training.main:
            print(f"The trained model: {settings.out / 'model'}")


_SHOWN = ("reward", "held_out_reward", "kl", "entropy", "clip_fraction", "memory_tokens")


def _print(metrics: Mapping[str, float]) -> None:
    shown = [f"{name} {metrics[name]:.3f}" for name in _SHOWN if name in metrics]
    skipped = [f"{name} {value}" for name, value in metrics.items() if name.startswith("skipped")]
    print(f"{metrics['iteration']:>5}  {'  '.join([*shown, *skipped])}", flush=True)


train.__doc__ = _TRAIN
