"""Run methods over tasks, and report: a table with intervals, and a plot of scores by length.

Every sample is a line of JSON, and what is done is not done again.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import isnan
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from memagent_graph.errors import ConfigurationError, MemAgentError, install_hint
from memagent_graph.evaluation import methods as ways
from memagent_graph.evaluation import scores
from memagent_graph.evaluation.samples import Unit, short
from memagent_graph.evaluation.scores import Mean, mean_cost, mean_score
from memagent_graph.templates import escape_controls
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.samples import Sample, Task
    from memagent_graph.evaluation.scores import Judge
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import Tokenizer


async def evaluate(
    reader: Reader,
    tasks: Sequence[Task],
    *,
    lengths: Sequence[int],
    methods: Sequence[str],
    samples: int,
    out: Path,
    config: ReadingConfig,
    seed: int = 0,
    concurrency: int = 1,
    judge: Judge | None = None,
) -> AsyncIterator[SampleResult]:
    """Run each method on each sample that has no result yet; yield results as they come.

    A stopped run resumes: lines of `out/samples.jsonl` are not made again,
    except for those with an error.

    Args:
        reader: the model of every method.
        tasks: tasks to ask.
        lengths: lengths of the documents in each task's unit; tasks with their own documents ignore
            them.
        methods: names of methods.
        samples: samples for each task and length; all if a task has fewer.
        out: folder for the results, created if missing.
        config: budgets of the readings.
        seed: seed of the samples, or of the order of questions.
        concurrency: samples to run at once.
        judge: model that grades answers no rule can.

    Raises:
        ConfigurationError: The folder holds results of another model, seed, budget or file; two
            tasks have one name; or there is no judge for a task that needs one.

    Examples:
        >>> import asyncio
        >>> import json
        >>> from pathlib import Path
        >>> from memagent_graph import ReadingConfig
        >>> from memagent_graph.evaluation.run import evaluate
        >>> from memagent_graph.evaluation.tasks import make_task
        >>> from memagent_graph.readers.resolve import resolve_reader
        >>> from memagent_graph.text.files import open_source
        >>> row = {"question": "When is high tide?", "answers": ["6:40"], "title": "Tide"}
        >>> row["text"] = "High tide is at 6:40."
        >>> _ = Path("tides.jsonl").write_text(json.dumps(row))
        >>> rain = open_source("It rained over the harbour again. " * 5000)
        >>> config = ReadingConfig(chunk_tokens=1000)
        >>> async def scores():
        ...     results = evaluate(
        ...         resolve_reader("extractive", config=config),  # or "openai:gpt-4o", ...
        ...         [make_task("qa:tides.jsonl", rain)],
        ...         lengths=[8192],
        ...         methods=["memagent", "truncate"],
        ...         samples=1,
        ...         out=Path("results"),
        ...         config=config,
        ...     )
        ...     return [(result.method, result.score) async for result in results]
        >>> asyncio.run(scores())
        [('memagent', 1.0), ('truncate', 0.0)]
    """
    tokenizer = load_tokenizer(reader.identity.tokenizer)
    about = {
        "reader": reader.identity.name,
        "fingerprint": reader.identity.fingerprint,
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "tokenizer": tokenizer.name,
        "judge": judge.identity if judge else "",
        "scores": scores.VERSION,
        "methods": ways.VERSION,
        "tasks": _identities(tasks),
    }
    done = _begin(out, about)
    wanted = iter([*places(tasks, lengths, samples)])

    async def work() -> list[SampleResult]:
        """All results of the next sample that lacks one; none when there is no such sample."""
        for task, length, index in wanted:
            name = f"{task.name}/{length}/{index}"
            missing = [method for method in methods if (name, method) not in done]
            if missing:
                sample = task.sample(length, index, seed=seed, tokenizer=tokenizer)
                return await _run(reader, config, tokenizer, judge, sample, task.unit, missing)
        return []

    running = {asyncio.ensure_future(work()) for _ in range(concurrency)}
    try:
        while running:
            ready, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for finished in ready:
                results = finished.result()
                running.remove(finished)
                if results:
                    running.add(asyncio.ensure_future(work()))
                    with (out / RESULTS).open("a", encoding="utf-8") as file:
                        file.writelines(f"{_RESULT.dump_json(one).decode()}\n" for one in results)
                for result in results:
                    yield result
    finally:
        for task_ in running:
            task_.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def places(
    tasks: Sequence[Task], lengths: Sequence[int], samples: int
) -> Iterator[tuple[Task, int, int]]:
    """Each sample's task, length and index: the shortest documents of all tasks first."""
    asked = [(length, task) for length, task in product(lengths, tasks) if task.unit != "whole"]
    for length, task in [*asked, *((0, task) for task in tasks if task.unit == "whole")]:
        most = samples if task.count is None else min(samples, task.count)
        yield from ((task, length, index) for index in range(most))


def _identities(tasks: Sequence[Task]) -> dict[str, str]:
    found: dict[str, str] = {}
    for task in tasks:
        if found.setdefault(task.name, task.identity) != task.identity:
            message = f"Two of the tasks are called {task.name}: write them to two folders."
            raise ConfigurationError(message)
    return found


async def _run(
    reader: Reader,
    config: ReadingConfig,
    tokenizer: Tokenizer,
    judge: Judge | None,
    sample: Sample,
    unit: Unit,
    methods: list[str],
) -> list[SampleResult]:
    if sample.criteria and judge is None:
        message = f"No rule can grade answers of {sample.task}: name a model with --judge."
        raise ConfigurationError(message)
    source = sample.open()
    results = []
    for method in methods:
        started = perf_counter()
        figures: dict[str, Any] = {}
        try:
            way = ways.make_method(method, reader, config, sample.template)
            outcome = await way(sample.question, source)
            seconds = perf_counter() - started
            answer, found = scores.grade(outcome.answer, sample, tokenizer, final=outcome.final)
            judges = judge if sample.criteria else None
            figures = {
                "reply": outcome.answer,
                "answer": answer,
                "score": await judges.grade(sample, outcome.answer) if judges else found.score,
                "raw_score": found.raw,
                "exact_match": found.exact_match,
                "f1": found.f1,
                "kept": [scores.share(memory, sample) for memory in outcome.memories] or None,
                "calls": outcome.usage.calls,
                "input_tokens": outcome.usage.input_tokens,
                "output_tokens": outcome.usage.output_tokens,
            }
        except MemAgentError as error:
            seconds = perf_counter() - started
            figures = {"error": str(error)}
        result = SampleResult(
            id=sample.id,
            method=method,
            task=sample.task,
            length=sample.length,
            question=sample.question,
            answers=[*sample.answers],
            unit=unit,
            cluster=sample.cluster,
            metric="judge" if sample.criteria else sample.metric,
            seconds=round(seconds, 4),
            **figures,
        )
        results.append(result)
    return results


RESULTS = "samples.jsonl"
RUN = "run.json"


@dataclass(frozen=True)
class SampleResult:
    """The result of one sample.

    Attributes:
        id: id of the sample.
        method: name of the method that answered.
        task: name of the task.
        length: requested length of the document.
        question: the question.
        answers: strings of a right answer.
        unit: unit of `length`.
        cluster: cluster of the sample, as `Sample.cluster`.
        reply: the model's reply; None if it failed.
        answer: the part of the reply that counts as the answer.
        metric: metric of `score`: "all" or "any" of the answers, or "judge".
        score: score by the task's metric, 0 to 1.
        raw_score: score of the whole reply, in which wanted strings may stand anywhere.
        exact_match: exact match of the answer, as SQuAD compares.
        f1: F1 of the answer's words, as SQuAD computes it, 0 to 1.
        kept: share of `answers` in the memory after each chunk, for MemAgent.
        calls: number of model calls.
        input_tokens: tokens of the prompts.
        output_tokens: tokens of the replies.
        seconds: time of the model calls, without the judge's.
        error: message of the error; None if there was none.
    """

    id: str
    method: str
    task: str
    length: int
    question: str
    answers: list[str]
    unit: Unit = "tokens"
    cluster: str = ""
    reply: str | None = None
    answer: str | None = None
    metric: str = "all"
    score: float = 0.0
    raw_score: float = 0.0
    exact_match: float = 0.0
    f1: float = 0.0
    kept: list[float] | None = None
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


_RESULT = TypeAdapter(SampleResult)


def _begin(out: Path, about: dict[str, Any]) -> set[tuple[str, str]]:
    """Make the folder, or go on with one; say which samples and methods are done there."""
    out.mkdir(parents=True, exist_ok=True)
    run = out / RUN
    if run.exists() or (out / RESULTS).exists():
        before = json.loads(run.read_text("utf-8")) if run.exists() else {}
        made = before.get("tasks", {})
        changed = [key for key in about if key != "tasks" and before.get(key) != about.get(key)]
        changed += [name for name, one in about["tasks"].items() if made.get(name, one) != one]
        if changed:
            message = (
                f"{out} holds results with another {' and another '.join(changed)} (see {RUN}): "
                "name another folder."
            )
            raise ConfigurationError(message)
        about = {**about, "tasks": {**made, **about["tasks"]}}
    run.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    file = out / RESULTS
    if file.exists() and not file.read_bytes().endswith(b"\n"):  # torn by a crash
        with file.open("a", encoding="utf-8") as lines:
            lines.write("\n")
    return {(result.id, result.method) for result in load(out) if result.error is None}


def load(out: Path) -> list[SampleResult]:
    """The results in a folder, the last one of each sample and method; torn lines are left out."""
    found: dict[tuple[str, str], SampleResult] = {}
    file = out / RESULTS
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError):
            result = _RESULT.validate_json(line)
            found[result.id, result.method] = result
    return [*found.values()]


@dataclass(frozen=True)
class Cell:
    """The results of one method on one task at one length; what failed counts as zero.

    `raw` is the score of whole replies, `kept` the share of the answers in the final memory.
    """

    task: str
    unit: Unit
    length: int
    method: str
    metric: str
    samples: int
    failed: int
    score: Mean
    raw: Mean
    kept: Mean | None
    calls: Mean
    tokens: Mean
    seconds: Mean


def cells(results: Iterable[SampleResult]) -> list[Cell]:
    """The results by task, length and method, in that order."""
    groups: dict[tuple[str, Unit, int, str, str], list[SampleResult]] = defaultdict(list)
    for result in results:
        place = (result.task, result.unit, result.length, result.method, result.metric)
        groups[place].append(result)
    return [_cell(*key, group) for key, group in sorted(groups.items())]


def _cell(
    task: str, unit: Unit, length: int, method: str, metric: str, group: list[SampleResult]
) -> Cell:
    clusters = [result.cluster for result in group]
    kept = [result.kept[-1] for result in group if result.kept]
    return Cell(
        *(task, unit, length, method, metric, len(group)),
        failed=sum(result.error is not None for result in group),
        score=mean_score([result.score for result in group], clusters),
        raw=mean_score([result.raw_score for result in group], clusters),
        kept=mean_score(kept) if kept else None,
        calls=mean_cost([result.calls for result in group]),
        tokens=mean_cost([result.input_tokens + result.output_tokens for result in group]),
        seconds=mean_cost([result.seconds for result in group]),
    )


_COLUMNS = ["task", "score of", "method", "length", "samples", "failed"]
_FIGURES = ["score", "raw score", "in memory", "calls", "tokens", "seconds"]


def markdown(found: Sequence[Cell]) -> str:
    """A table in Markdown: a row for each task, length and method."""
    rows = [[*_COLUMNS, *_FIGURES]]
    for cell in found:
        length = short(cell.length) if cell.unit == "tokens" else cell.unit
        row = [cell.task, cell.metric, cell.method, length]
        row += [str(cell.samples), str(cell.failed)]
        figures: list[tuple[Mean | None, str]] = [
            *((mean, ".0%") for mean in (cell.score, cell.raw, cell.kept)),
            *((cell.calls, ".1f"), (cell.tokens, ",.0f"), (cell.seconds, ".2f")),
        ]
        rows.append(row + [_with_interval(*figure) for figure in figures])
    return in_markdown(rows)


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = [
        [escape_controls(" ".join(cell.split())).replace("|", r"\|") for cell in row]
        for row in (head, *body)
    ]
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _with_interval(mean: Mean | None, form: str) -> str:
    if mean is None:
        return ""
    if isnan(mean.low) or mean.low == mean.high:
        return format(mean.value, form)
    return f"{mean.value:{form}} ({mean.low:{form}} to {mean.high:{form}})"


def write_report(out: Path, results: Sequence[SampleResult], title: str) -> None:
    """Write report.md into a folder, and accuracy.png if documents have several lengths.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    found = cells(results)
    note = (
        "Means with 95% intervals: Wilson's of scores, for clusters where questions share a "
        "paragraph, Student's of the others. Failed samples count as zero. Scores are of the final "
        "answer; the raw score is of the whole reply.\n"
    )
    parts = [f"# {title}\n", note, markdown(found)]
    if drawn := [cell for cell in found if cell.unit != "whole"]:
        _draw(out / "accuracy.png", drawn)
        parts.append("![score by length](accuracy.png)\n")
    (out / "report.md").write_text("\n".join(parts), "utf-8")


def figure_kind() -> type[Figure]:
    """The class of matplotlib's that plots are made of."""
    with install_hint('To draw plots: pip install "memagent-graph[eval]"'):
        from matplotlib.figure import Figure
    return Figure


def _draw(file: Path, found: Sequence[Cell]) -> None:
    """Draw the scores by length with their intervals, a line for each task and method."""
    lines: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        lines[f"{cell.task} {cell.method}".replace("$", r"\$")].append(cell)
    figure = figure_kind()(figsize=(10, 5), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    for name, line in lines.items():
        scores = [100 * cell.score.value for cell in line]
        below = [100 * (cell.score.value - cell.score.low) for cell in line]
        above = [100 * (cell.score.high - cell.score.value) for cell in line]
        lengths = [cell.length for cell in line]
        axes.errorbar(lengths, scores, yerr=(below, above), label=name, marker="o", elinewidth=0.4)
    names = {cell.length: short(cell.length) for cell in found}
    axes.set_xscale("log", base=2)
    axes.set_xticks([*names], names.values())
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set(xlabel="length of the document", ylabel="score, %", ylim=(-5, 105))
    figure.legend(fontsize=8, loc="outside right center")
    figure.savefig(file)
