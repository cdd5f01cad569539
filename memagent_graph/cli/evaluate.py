"""`memagent eval`: accuracy by length, with MemAgent and without."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.options import (
    AnswerTokens,
    BaseUrl,
    ChunkTokens,
    ExactCuts,
    MemoryTokens,
    Model,
    ModelArgs,
    PromptsFile,
    TokenizerFile,
    check_server,
    make_reader,
)
from memagent_graph.cli.terminal import report_errors
from memagent_graph.errors import ConfigurationError
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memagent_graph.evaluation.run import SampleResult
    from memagent_graph.evaluation.samples import Task

_EXAMPLES = """Measure a model, with MemAgent and without.

Tasks are questions over files of HotpotQA, SQuAD or Natural Questions, over your own documents,
and RULER's samples: --list shows what each needs. Methods: memagent, whole, truncate, bm25,
map_reduce, refine.

Examples:

\b
  memagent eval --tasks qa:hotpot.json --lengths 8k,128k,1m --out results/
  memagent eval --ruler-file niah_single_1.jsonl --out results/
  memagent eval --model openai:gpt-4o --methods memagent,bm25 --out o/
  memagent eval --compare before/ after/

Every sample is a line of OUT/samples.jsonl; what is there is not asked again. OUT gets a
report.md and a plot. To compare two runs, which asks no model, it is left out.
The score is of the final answer: what the reply boxes, or the whole of it.

Exit codes: 0 done, 1 some samples failed, 2 wrong usage, 130 interrupted.
"""
_STOPPED = "memagent: stopped. The samples so far are kept. To continue:\n  {command}"


def evaluate(
    out: Annotated[Path | None, typer.Option(help="Folder for samples, table and plot.")] = None,
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
    ruler_file: Annotated[
        Path | None,
        typer.Option(help="Samples of RULER's own generator (jsonl), unchanged."),
    ] = None,
    essays: Annotated[
        Path | None, typer.Option(help="File or folder of texts to fill documents with.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Compare two folders of results, without a model."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the tasks and what each needs.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the samples and of the order of questions.")
    ] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples to run at once.")] = 8,
    model: Model = None,
    model_args: ModelArgs = None,
    base_url: BaseUrl = None,
    chunk_tokens: ChunkTokens = 5000,
    exact_cuts: ExactCuts = False,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.methods import make_method
    from memagent_graph.evaluation.report import cells, figure_kind, markdown, write_report
    from memagent_graph.evaluation.run import evaluate as evaluate_samples
    from memagent_graph.evaluation.run import load, places
    from memagent_graph.text.tokens import load_tokenizer

    if list_:
        _list()
        return
    if compare is not None:
        with report_errors():
            _compare(*compare)
        return
    if out is None:
        raise typer.BadParameter("Name a folder for the results: --out DIR.")
    with report_errors(_STOPPED):
        figure_kind()  # before the model's work, not after it
        config = ReadingConfig(
            chunk_tokens=chunk_tokens,
            exact_cuts=exact_cuts,
            memory_tokens=memory_tokens,
            answer_tokens=answer_tokens,
        )
        wanted = _lengths(lengths)
        made = _tasks(tasks, ruler_file, essays)
        reader = make_reader(model, base_url, prompts, tokenizer, config, model_args)
        check_server(reader)
        if tokenizer is not None:
            reader.identity = replace(reader.identity, tokenizer=load_tokenizer(tokenizer))
        for method in methods.split(","):
            make_method(method, reader, config)
        running = evaluate_samples(
            reader,
            made,
            lengths=wanted,
            methods=methods.split(","),
            samples=samples,
            out=out,
            config=config,
            seed=seed,
            concurrency=concurrency,
        )
        total = len([*places(made, wanted, samples)]) * len(methods.split(","))
        asyncio.run(_through(running, total))
        results = load(out)
        title = (
            f"{reader.identity.name}, chunks of {chunk_tokens}, memory of {memory_tokens} tokens"
        )
        print(markdown(cells(results)), end="")
        write_report(out, results, title)
        failed = sum(result.error is not None for result in results)
        if failed:
            found = plural(failed, "sample")
            print(f"memagent: {found} failed: see {out / 'samples.jsonl'}", file=sys.stderr)
            raise typer.Exit(1)


def _lengths(text: str) -> list[int]:
    from memagent_graph.evaluation.samples import parse_length

    try:
        return [parse_length(length) for length in text.split(",")]
    except ValueError as error:
        message = f"Lengths are numbers of tokens such as 8k,128k,3.5m, not {text!r}."
        raise ConfigurationError(message) from error


def _tasks(names: str | None, ruler_file: Path | None, essays: Path | None) -> list[Task]:
    """The tasks that were named, and those of a file."""
    from memagent_graph.evaluation.tasks import make_task
    from memagent_graph.evaluation.tasks.ruler import ruler_tasks
    from memagent_graph.text.files import open_source

    text = open_source(essays) if essays else None
    if not names and ruler_file is None:
        raise typer.BadParameter("Name a task: --tasks qa:FILE or --ruler-file FILE. See --list.")
    made = [make_task(name, text) for name in names.split(",")] if names else []
    return [*made, *(ruler_tasks(ruler_file) if ruler_file else ())]


def _list() -> None:
    """Print the tasks: name, what is asked, and what has to be there."""
    from memagent_graph.evaluation.tasks import KINDS

    rows = [("task", "asks for", "needs")]
    rows += [(name, kind.asks, kind.needs or "-") for name, kind in KINDS.items()]
    name_width, asks_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, asks, needs in rows:
        print(f"{name:{name_width}}  {asks:{asks_width}}  {needs}")


def _compare(before: Path, after: Path) -> None:
    """Print what changed between two runs."""
    from memagent_graph.evaluation.report import differences, table
    from memagent_graph.evaluation.run import load

    print(table(differences(load(before), load(after))), end="")


async def _through(running: AsyncIterator[SampleResult], total: int) -> None:
    """Run to the end behind a progress bar, which counts what is new."""
    from tqdm import tqdm

    with tqdm(total=total, unit="sample", disable=None) as bar:
        async for result in running:
            bar.set_postfix_str(f"{result.id} {result.method}")
            bar.update()


evaluate.__doc__ = _EXAMPLES
