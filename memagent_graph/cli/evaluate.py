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
    MemoryTokens,
    Model,
    ModelArgs,
    PromptsFile,
    TokenizerFile,
    chosen_reader,
)
from memagent_graph.cli.reporting import reporting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from memagent_graph.evaluation.run import Result

_EXAMPLES = """Measure a model on documents of many lengths, with MemAgent and without.

Tasks are those of RULER (niah_single_1 to 3, niah_multikey_1 to 3, niah_multivalue,
niah_multiquery, vt, cwe, fwe), and qa:FILE over a file of SQuAD or HotpotQA. Methods: memagent,
whole, truncate, bm25, map_reduce, refine.

**Examples**

    memagent eval --tasks niah_single_1,vt --lengths 8k,128k,1m --out results/

    memagent eval --model openai:gpt-4o --methods memagent,truncate,bm25 --essays novels/ --out o/

    memagent eval --compare before/ after/

Every sample is a line of OUT/samples.jsonl; what is there is not asked again. OUT gets a
report.md, a report.html and plots. To compare two runs, which asks no model, it may be left out.

**Exit codes**: 0 done, 1 some samples failed, 2 wrong usage, 130 interrupted.
"""
_STOPPED = "memagent: stopped. The samples so far are kept. To go on:\n  {command}"


def evaluate(
    out: Annotated[
        Path | None, typer.Option(help="A folder for samples, tables and plots.")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Names, with commas.")] = "niah_single_1,vt,cwe,fwe",
    lengths: Annotated[str, typer.Option(help="Tokens, with commas: 8k,128k,3.5m.")] = "8k,32k",
    methods: Annotated[str, typer.Option(help="Names, with commas.")] = "memagent",
    samples: Annotated[int, typer.Option(min=1, help="Of each task and length.")] = 20,
    essays: Annotated[
        Path | None, typer.Option(help="Text of any kind, a file or a folder, as haystack.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Two folders of runs: what has changed?")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one makes other samples.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples at once.")] = 8,
    model: Model = None,
    model_args: ModelArgs = None,
    base_url: BaseUrl = None,
    chunk_tokens: ChunkTokens = 5000,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    from memagent_graph.config import ReadingConfig
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.evaluation.methods import make_method
    from memagent_graph.evaluation.plots import figure_kind
    from memagent_graph.evaluation.report import cells, markdown, write_report
    from memagent_graph.evaluation.run import evaluate as evaluate_samples
    from memagent_graph.evaluation.run import load
    from memagent_graph.evaluation.samples import parse_length
    from memagent_graph.evaluation.tasks import make_task
    from memagent_graph.text.opening import open_source
    from memagent_graph.text.tokens import load_tokenizer

    if compare is not None:
        with reporting():
            _compare(*compare, out)
        return
    if out is None:
        raise typer.BadParameter("Name a folder for the results: --out DIR.")
    with reporting(_STOPPED):
        figure_kind()  # before the model's work, not after it
        config = ReadingConfig(
            chunk_tokens=chunk_tokens, memory_tokens=memory_tokens, answer_tokens=answer_tokens
        )
        try:
            wanted = [parse_length(length) for length in lengths.split(",")]
        except ValueError as error:
            message = f"Lengths are numbers of tokens such as 8k,128k,3.5m, not {lengths!r}."
            raise ConfigurationError(message) from error
        text = open_source(essays) if essays else None
        made = [make_task(name, text) for name in tasks.split(",")]
        reader = chosen_reader(model, base_url, prompts, tokenizer, config, model_args)
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
        total = len(made) * len(wanted) * samples * len(methods.split(","))
        asyncio.run(_through(running, total))
        results = load(out)
        title = (
            f"{reader.identity.name}, chunks of {chunk_tokens}, memory of {memory_tokens} tokens"
        )
        write_report(out, results, title)
        print(markdown(cells(results)), end="")
        failed = sum(result.error is not None for result in results)
        if failed:
            print(
                f"memagent: {failed} samples failed: see {out / 'samples.jsonl'}", file=sys.stderr
            )
            raise typer.Exit(1)


def _compare(before: Path, after: Path, out: Path | None) -> None:
    """Print what changed between two runs, and write it down if there is a folder for it."""
    from memagent_graph.evaluation.comparison import differences, table, write_comparison
    from memagent_graph.evaluation.run import load

    found = differences(load(before), load(after))
    print(table(found), end="")
    if out is not None:
        write_comparison(out, found, f"{before} and then {after}")


async def _through(running: AsyncIterator[Result], total: int) -> None:
    """Run to the end behind a progress bar, which counts what is new."""
    from tqdm import tqdm

    with tqdm(total=total, unit="sample", disable=None) as bar:
        async for result in running:
            bar.set_postfix_str(f"{result.id} {result.method}")
            bar.update()


evaluate.__doc__ = _EXAMPLES
