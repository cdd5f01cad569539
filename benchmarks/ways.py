"""Ways to read a long document with one reader, on the same questions: scores, calls and chains.

    MEMAGENT_DATA=... python benchmarks/ways.py OUT

Questions of the NQ, HotpotQA and XQuAD files among the novels, at 128K and 1M tokens. The reader
is the built-in one; all ways but BM25 are settings of the same graph. Each call takes one second
of a virtual clock, so that the time of a reading is its longest chain of dependent calls, where a
server answers any number of calls at once. Tokens are counted as the library's own prompts would
have them. Settings are chosen on one half of the questions, by a hash of the sample's name, at
128K; the other half is reported. Rows of OUT/rows.jsonl are not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import virtual_clock
from skim import remember_what_does_not_depend_on_the_question
from ways_reading import Read, read

from memagent_graph.evaluation import scores
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.files import open_source
from memagent_graph.text.index import forget_recent
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memagent_graph.evaluation.samples import Sample, Task

K, M = 2**10, 2**20
SKIM = {"skim": "lexical"}
WAYS: dict[str, list[dict[str, Any]]] = {
    "MemAgent": [{}],
    "map": [{"segments": 8}, {"segments": 16}, {"segments": 32}],
    "skim": [SKIM],
    "skim in segments": [SKIM | {"segments": 16}],
    "BM25": [{}],
}
"""The settings among which each way's is chosen."""
FAST = ("skim", "skim in segments")
MOST_CALLS, MOST_CHAIN, MOST_WORSE = 1 / 4, 1 / 11, 0.03
QUESTIONS = ("nq_open.jsonl", "hotpotqa_distractor.json", "xquad.en.json")
SAMPLES = {128 * K: 80, M: 5}
"""Of each file and length; about half are reported: a hundred or more at 128K."""
CHOOSING = 24
"""Of the samples at 128K, so many are the ones of which half serve to choose settings."""
TIMED = ("qa:hotpotqa_distractor.json", "qa:nq_open.jsonl")
"""Tasks whose first sample is also read without caches, for the processor's seconds."""


class Row(NamedTuple):
    """One sample, read one way.

    Attributes:
        way: its name.
        setting: the setting that it was read with.
        task: of the sample.
        length: of the document, in tokens.
        index: of the sample.
        question: what was asked.
        score: share of the wanted strings in the answer, or whether one of them is, up to the
            length of answer that the task allows.
        kept: likewise in the text that the answer was written from.
        calls: of the reader.
        input_tokens: of their prompts.
        output_tokens: of their replies.
        chain: the longest of calls of which each waits for the one before.
        processor: seconds.
        plain: whether nothing was remembered from another way or question.
    """

    way: str
    setting: str
    task: str
    length: int
    index: int
    question: str
    score: float
    kept: float
    calls: int
    input_tokens: int
    output_tokens: int
    chain: int
    processor: float
    plain: bool


class Job(NamedTuple):
    """A sample, and the ways and settings that it lacks."""

    task: str
    length: int
    index: int
    settings: list[tuple[str, dict[str, Any]]]
    plain: bool = False


def work(job: Job) -> list[Row]:
    tokenizer = EstimatingTokenizer()
    sample = known_task(job.task).sample(job.length, job.index, seed=0, tokenizer=tokenizer)
    source = sample.open()
    rows = []
    for way, setting in job.settings:
        if job.plain:
            forget_recent([source.digest])
        started = process_time()
        found, seconds = virtual_clock.run(read(way, setting, sample.question, source))
        processor = process_time() - started
        score, kept = grade(found, sample)
        about = (way, json.dumps(setting), job.task, job.length, job.index, sample.question)
        used = (found.calls, found.input_tokens, found.output_tokens, round(seconds))
        rows.append(Row(*about, score, kept, *used, processor, job.plain))
    return rows


def grade(found: Read, sample: Sample) -> tuple[float, float]:
    """Shares of the wanted strings in the answer and in what it was written from."""
    answer, _ = scores.grade(found.answer, sample, EstimatingTokenizer(), final=found.final)
    return scores.share(answer, sample), scores.share(found.context, sample)


@lru_cache
def known_task(name: str) -> Task:
    data = Path(os.environ["MEMAGENT_DATA"])
    novels = open_source([data / "war_and_peace.txt", data / "moby-dick.txt"])
    kind, _, file = name.partition(":")
    return make_task(f"{kind}:{data / file}", novels)


def tasks() -> list[str]:
    return [f"qa:{file}" for file in QUESTIONS]


def is_reported(task: str, index: int) -> bool:
    """Whether a sample is in the half that is reported, rather than that on which is chosen."""
    return sha256(f"{task} {index}".encode()).digest()[0] % 2 == 0


def choosing_jobs() -> list[Job]:
    settings = [(way, one) for way, some in WAYS.items() if len(some) > 1 for one in some]
    places = [(index, task) for task in tasks() for index in range(CHOOSING)]
    return [
        Job(task, 128 * K, index, settings)
        for index, task in sorted(places, key=lambda at: at[0])
        if not is_reported(task, index)
    ]


def reported_jobs(chosen: dict[str, dict[str, Any]]) -> list[Job]:
    """Long and short documents in turn, so that a run that is cut off has some of all."""
    places = [
        (index / samples, task, length, index)
        for task in tasks()
        for length, samples in SAMPLES.items()
        for index in range(samples)
        if is_reported(task, index)
    ]
    return [Job(*place, [*chosen.items()]) for _, *place in sorted(places, key=lambda at: at[0])]


def timed_jobs(chosen: dict[str, dict[str, Any]]) -> list[Job]:
    places = [(task, length) for task in TIMED for length in (128 * K, M)]
    return [Job(*place, 0, [*chosen.items()], plain=True) for place in places]


def choose(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Of each way the setting with the best score; of equals the cheapest."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if not (row.plain or is_reported(row.task, row.index)):
            groups[row.way, row.setting].append(row)

    def merit(way: str, setting: dict[str, Any]) -> tuple[float, float]:
        found = groups[way, json.dumps(setting)]
        return round(fmean(row.score for row in found), 3), -fmean(row.calls for row in found)

    return {
        way: some[0] if len(some) == 1 else max(some, key=lambda one, way=way: merit(way, one))
        for way, some in WAYS.items()
    }


def do(jobs: list[Job], file: Path, rows: list[Row], *, processes: int = 2) -> None:
    """Make the rows that are missing, and add them to the file and to `rows`."""
    done = {(row.way, row.setting, row.task, row.length, row.index, row.plain) for row in rows}
    missing = []
    for job in jobs:
        at = (job.task, job.length, job.index, job.plain)
        left = [(way, one) for way, one in job.settings if (way, json.dumps(one), *at) not in done]
        if left:
            missing.append(job._replace(settings=left))
    if not missing:
        return
    remember = None if missing[0].plain else remember_what_does_not_depend_on_the_question
    with ProcessPoolExecutor(processes, initializer=remember) as pool, file.open("a") as lines:
        for made in pool.map(work, missing):
            lines.writelines(json.dumps(row._asdict()) + "\n" for row in made)
            lines.flush()
            rows += made


def load(file: Path) -> list[Row]:
    """The rows in a file; a line that was torn when a run was cut off is taken away."""
    if not file.exists():
        return []
    text = file.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, "utf-8")
    return [Row(**json.loads(line)) for line in whole.splitlines()]


async def check(seconds: float) -> tuple[float, float]:
    """Seconds of one reading in segments, on a real clock and on the virtual one."""
    tokenizer = EstimatingTokenizer()
    sample = known_task(tasks()[0]).sample(128 * K, 0, seed=0, tokenizer=tokenizer)
    source = sample.open()
    asked = ("map", {"segments": 16}, sample.question, source, seconds)
    started = perf_counter()
    real = await read(*asked)
    took = perf_counter() - started
    virtual, passed = await asyncio.to_thread(lambda: virtual_clock.run(read(*asked)))
    assert virtual == real
    return took, passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--report", action="store_true", help="of the rows that are there")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "rows.jsonl"
    rows, started = load(file), perf_counter()
    if not given.report:
        do(choosing_jobs(), file, rows)
        print(f"{perf_counter() - started:.0f} s for choosing", flush=True)
        do(timed_jobs(choose(rows)), file, rows, processes=1)
        do(reported_jobs(choose(rows)), file, rows)
        print(f"{perf_counter() - started:.0f} s in all", flush=True)
        took, passed = asyncio.run(check(2.0))
        print(f"One reading in segments: {took:.1f} s, by the virtual clock {passed:.1f} s")
    from ways_report import report

    print(report(rows, choose(rows)))


if __name__ == "__main__":
    main()
