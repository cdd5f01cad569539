"""Run methods over tasks: every sample is a line of JSON, and what is done is not done again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError, MemAgentError
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.scores import exact_match, substring_match, token_f1
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evaluation.samples import Sample, Task
    from memagent_graph.readers.base import Reader

RESULTS = "samples.jsonl"
_RUN = "run.json"


@dataclass(frozen=True)
class Result:
    """What became of one sample.

    Attributes:
        id: of the sample.
        method: which one answered.
        task: the sample's.
        length: tokens that the document was to have.
        question: what was asked.
        answers: what a right answer holds.
        answer: what was answered; None when it failed.
        score: the task's own, 0 to 1.
        exact_match: as SQuAD compares.
        f1: likewise.
        kept: for MemAgent, the share of `answers` in the memory after each chunk.
        depths: where in the document its evidence begins, 0 to 1.
        calls: of the model.
        input_tokens: of its prompts.
        output_tokens: of its replies.
        seconds: in all.
        error: why it failed.
    """

    id: str
    method: str
    task: str
    length: int
    question: str
    answers: list[str]
    answer: str | None = None
    score: float = 0.0
    exact_match: float = 0.0
    f1: float = 0.0
    kept: list[float] | None = None
    depths: list[float] | None = None
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


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
) -> AsyncIterator[Result]:
    """Run what is missing of each method on each sample; yield results as they come.

    A run that was stopped goes on where it was: lines of `out/samples.jsonl` are not made again,
    but for those with an error.

    Args:
        reader: the model behind every method.
        tasks: what to ask.
        lengths: tokens of the documents.
        methods: names of methods.
        samples: how many of each task and length.
        out: a folder, made if it is not there.
        config: budgets.
        seed: other seeds make other samples.
        concurrency: samples at once.

    Raises:
        ConfigurationError: The folder holds samples of another model, seed or budget.
    """
    tokenizer = load_tokenizer(reader.identity.tokenizer)
    budgets = config.model_dump(mode="json")
    who = {"reader": reader.identity.name, "fingerprint": reader.identity.fingerprint}
    done = _begun(out, {**who, "config": budgets, "seed": seed, "tokenizer": tokenizer.name})
    wanted = product(lengths, tasks, range(samples))

    async def work() -> list[Result]:
        """All results of the next sample that lacks one; none when there is no such sample."""
        for length, task, index in wanted:
            name = f"{task.name}/{length}/{index}"
            missing = [method for method in methods if (name, method) not in done]
            if missing:
                sample = task.sample(length, index, seed=seed, tokenizer=tokenizer)
                return await _run(reader, config, sample, missing)
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
                    _append(out, results)
                for result in results:
                    yield result
    finally:
        for task_ in running:
            task_.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _begun(out: Path, about: dict[str, object]) -> set[tuple[str, str]]:
    """Make the folder; say which samples and methods are done there.

    Raises:
        ConfigurationError: They were done by another model, or in another way.
    """
    out.mkdir(parents=True, exist_ok=True)
    run = out / _RUN
    if run.exists() and json.loads(run.read_text("utf-8")) != about:
        message = (
            f"{out} holds samples of another model, seed or budget (see {_RUN}): name another."
        )
        raise ConfigurationError(message)
    run.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    file = out / RESULTS
    if file.exists() and not file.read_bytes().endswith(b"\n"):  # torn by a crash
        with file.open("a", encoding="utf-8") as lines:
            lines.write("\n")
    return {(result.id, result.method) for result in load(out) if result.error is None}


def _append(out: Path, results: list[Result]) -> None:
    with (out / RESULTS).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(result)) + "\n" for result in results)


def load(out: Path) -> list[Result]:
    """The results in a folder, the last one of each sample and method; torn lines are left out."""
    found: dict[tuple[str, str], Result] = {}
    known = {field.name for field in fields(Result)}
    try:
        lines = (out / RESULTS).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
            result = Result(**{key: value for key, value in record.items() if key in known})
        except (TypeError, ValueError):
            continue
        found[result.id, result.method] = result
    return [*found.values()]


async def _run(
    reader: Reader, config: ReadingConfig, sample: Sample, methods: list[str]
) -> list[Result]:
    source, spans = sample.opened()
    depths = [start / max(1, source.length) for start, _ in _first(spans)]
    result = partial(
        Result,
        id=sample.id,
        task=sample.task,
        length=sample.length,
        question=sample.question,
        answers=[*sample.answers],
        depths=[round(depth, 4) for depth in depths],
    )
    results = []
    for method in methods:
        started = perf_counter()
        try:
            outcome = await make_method(method, reader, config)(sample.question, source)
        except MemAgentError as error:
            seconds = perf_counter() - started
            results.append(result(method=method, seconds=seconds, error=str(error)))
            continue
        usage = outcome.usage
        results.append(
            result(
                method=method,
                answer=outcome.answer,
                score=substring_match(outcome.answer, sample.answers, sample.metric),
                exact_match=exact_match(outcome.answer, sample.answers),
                f1=token_f1(outcome.answer, sample.answers),
                kept=[substring_match(memory, sample.answers) for memory in outcome.memories]
                or None,
                calls=usage.calls,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                seconds=round(perf_counter() - started, 4),
            )
        )
    return results


_MOST_DEPTHS = 16
"""Of a list in which every other word is evidence, the depths tell nothing."""


def _first(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return spans if len(spans) <= _MOST_DEPTHS else []
