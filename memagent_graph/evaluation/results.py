"""A folder of results: a line of JSON for each sample and method, and what they were made by."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypedDict

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from memagent_graph.evaluation.samples import Unit

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
        document: digest of the document's text.
        cluster: cluster of the sample, as `Sample.cluster`.
        reply: the model's reply; None if it failed.
        answer: the part of the reply that counts as the answer.
        metric: metric of `score`: "all" or "any" of the answers, "judge", or "told".
        score: score by the task's metric, 0 to 1; None if it needs a judge and there was none.
        raw_score: score of the whole reply, in which wanted strings may stand anywhere.
        exact_match: exact match of the answer, as SQuAD compares.
        f1: F1 of the answer's words, as SQuAD computes it, 0 to 1.
        told: share of the evidence in the text that the answer was written from; None if the task
            does not name its evidence.
        kept: share of `answers` in the memory after each chunk, for MemAgent.
        depths: relative position of each piece of evidence in the document, 0 to 1.
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
    document: str = ""
    cluster: str = ""
    reply: str | None = None
    answer: str | None = None
    metric: str = "all"
    score: float | None = 0.0
    raw_score: float = 0.0
    exact_match: float = 0.0
    f1: float = 0.0
    told: float | None = None
    kept: list[float] | None = None
    depths: list[float] | None = None
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None


class About(TypedDict):
    """The settings of a folder's results; runs that differ in any of them are not mixed.

    Attributes:
        reader: the model's name.
        fingerprint: fingerprint of the model and its prompts.
        config: the budgets.
        seed: seed of the samples.
        tokenizer: name of the tokenizer that counted lengths.
        judge: the judge's name and fingerprint; empty for none.
        scores: version of the scores.
        methods: version of the methods.
        tasks: identity of each task, by name.
    """

    reader: str
    fingerprint: str
    config: dict[str, object]
    seed: int
    tokenizer: str
    judge: str
    scores: int
    methods: int
    tasks: dict[str, str]


def begin(out: Path, about: About) -> set[tuple[str, str]]:
    """Make the folder, or go on with one; say which samples and methods are done there.

    Raises:
        ConfigurationError: They were made by something else: by another model, of another file.
    """
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


def append(out: Path, results: Iterable[SampleResult]) -> None:
    """Add results to a folder."""
    with (out / RESULTS).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(result)) + "\n" for result in results)


def load(out: Path) -> list[SampleResult]:
    """The results in a folder, the last one of each sample and method; torn lines are left out."""
    found: dict[tuple[str, str], SampleResult] = {}
    known = {field.name for field in fields(SampleResult)}
    try:
        lines = (out / RESULTS).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
            result = SampleResult(**{key: value for key, value in record.items() if key in known})
        except (TypeError, ValueError):
            continue
        found[result.id, result.method] = result
    return [*found.values()]
