"""Run methods over tasks, and report a table with intervals.

Every sample is a line of JSON, and what is done is not done again.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import groupby, product
from operator import attrgetter
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import TypeAdapter

from memagent_graph.errors import ConfigurationError, MemAgentError
from memagent_graph.evaluation import methods as ways
from memagent_graph.evaluation.samples import (
    SCORES,
    Grade,
    SampleQuestion,
    Unit,
    grade,
    mean_score,
    share,
    short,
)
from memagent_graph.readers.base import Usage
from memagent_graph.templates import escape_controls
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.samples import Sample, Task
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
    calls: CallRecorder | None = None,
) -> AsyncIterator[SampleResult]:
    """Run each method on each sample that has no result yet; yield results as they come.

    A stopped run resumes: lines of `out/samples.jsonl` are not made again, except for those with
    an error.

    Args:
        reader: the model of every method.
        tasks: tasks to ask.
        lengths: lengths of documents in tokens, which tasks with their own documents ignore.
        methods: names of methods.
        samples: samples for each task and length; all if a task has fewer.
        out: folder for the results, created if missing.
        config: budgets of the readings.
        seed: seed of the samples, or of the order of questions.
        concurrency: samples to run at once.
        calls: records each call of a chat model, a failed one too, under sample and method, and
            says what it cost.

    Raises:
        ConfigurationError: The folder holds results of another model, seed, budget or file, or
            two tasks have one name.
    """
    tokenizer = load_tokenizer(reader.identity.tokenizer)
    about = {
        "reader": reader.identity.name,
        "fingerprint": reader.identity.fingerprint,
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "tokenizer": tokenizer.name,
        "scores": SCORES,
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
                return await _run(reader, config, tokenizer, sample, task.unit, missing, calls)
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
    sample: Sample,
    unit: Unit,
    methods: list[str],
    calls: CallRecorder | None,
) -> list[SampleResult]:
    source = sample.open()
    asked = {one.name: getattr(sample, one.name) for one in fields(SampleQuestion)}
    results = []
    for method in methods:
        started = perf_counter()
        figures: dict[str, Any] = {}
        usage, rollout = Usage(), f"{sample.id} {method}"
        try:
            run = calls.config(rollout=rollout) if calls else None
            way = ways.make_method(method, reader, config, sample.template, run)
            outcome = await way(sample.question, source)
            seconds = perf_counter() - started
            graded = grade(outcome.answer, sample, tokenizer, final=outcome.final)
            figures = {
                **asdict(graded),
                "reply": outcome.answer,
                "kept": [share(memory, sample) for memory in outcome.memories] or None,
            }
            usage = outcome.usage
        except MemAgentError as error:
            seconds = perf_counter() - started
            figures = {"error": str(error)}
        usage = (calls and calls.spent(rollout)) or usage
        for name in ("calls", "input_tokens", "output_tokens"):
            figures[name] = getattr(usage, name)
        seconds = round(seconds, 4)
        results.append(SampleResult(**asked, method=method, unit=unit, seconds=seconds, **figures))
    return results


class CallRecorder(Protocol):
    """Records the calls of models, as `CallRecord` of `memagent_graph.rl.recorder` does."""

    def config(self, *, rollout: str) -> RunnableConfig:
        """Return a config for runs whose calls are recorded under an id."""

    def spent(self, rollout: str) -> Usage | None:
        """Return what calls under an id cost since it was asked last; None without a call."""


RESULTS = "samples.jsonl"
RUN = "run.json"


@dataclass(frozen=True, kw_only=True)
class SampleResult(Grade, SampleQuestion):
    """The result of one sample, with its grade.

    Attributes:
        method: name of the method that answered.
        unit: unit of `length`.
        reply: the model's reply; None if it failed.
        kept: share of `answers` in the memory after each chunk, for MemAgent.
        calls: number of model calls, with those that failed.
        input_tokens: tokens of the prompts.
        output_tokens: tokens of the replies.
        seconds: time of the model calls.
        error: message of the error; None if there was none.
    """

    method: str
    unit: Unit = "tokens"
    reply: str | None = None
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


_COLUMNS = (
    "task, score of, method, length, samples, failed, score, raw score, in memory, calls, tokens, "
    "seconds"
)


def tabulate(results: Iterable[SampleResult]) -> str:
    """A table in Markdown of means, scores with intervals: a row a task, length and method.

    What failed counts as zero. "In memory" is the share of the answers in the final memory.
    """
    rows = [_COLUMNS.split(", ")]
    place = attrgetter("task", "unit", "length", "method", "metric")
    for _, found in groupby(sorted(results, key=place), place):
        group = [*found]
        one = group[0]
        kept = [result.kept[-1] for result in group if result.kept]
        scores = ([result.score for result in group], [result.raw_score for result in group], kept)
        length = short(one.length) if one.unit == "tokens" else one.unit
        failed = sum(result.error is not None for result in group)
        rows.append(
            [
                *(one.task, one.metric, one.method, length, str(len(group)), str(failed)),
                *(
                    "{:.0%} ({:.0%} to {:.0%})".format(*mean_score(own)) if own else ""
                    for own in scores
                ),
                f"{fmean(result.calls for result in group):.1f}",
                f"{fmean(result.input_tokens + result.output_tokens for result in group):,.0f}",
                f"{fmean(result.seconds for result in group):.2f}",
            ]
        )
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


def write_report(out: Path, results: Sequence[SampleResult], title: str) -> None:
    """Write report.md into a folder."""
    note = (
        "Means, of scores with Wilson's 95% intervals. Failed samples count as zero. Scores are of "
        "the final answer; the raw score is of the whole reply.\n"
    )
    (out / "report.md").write_text("\n".join([f"# {title}\n", note, tabulate(results)]), "utf-8")
