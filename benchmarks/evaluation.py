"""python benchmarks/evaluation.py OUT: the built-in reader on documents of 8K to 3.5M tokens.

Two tables: MemAgent on RULER's needle, tracking and word tasks, made by `memagent eval`'s own code
(20 samples a cell, 3 at 3.5M); and six methods on the questions of the XQuAD and HotpotQA files of
MEMAGENT_DATA among its novels. Half an hour on two cores; what is done is not done again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter

from memagent_graph.config import ReadingConfig
from memagent_graph.evaluation.methods import METHODS
from memagent_graph.evaluation.report import cells, details, markdown, write_report
from memagent_graph.evaluation.results import load
from memagent_graph.evaluation.run import evaluate
from memagent_graph.evaluation.tasks import NEEDLE_TASKS, make_task
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.opening import open_source

DATA = Path(os.environ["MEMAGENT_DATA"])
NOVELS = [DATA / "war_and_peace.txt", DATA / "moby-dick.txt"]
RULER = [*NEEDLE_TASKS, "vt", "cwe", "fwe"]
FILES = [f"qa:{DATA / name}" for name in ("hotpotqa_distractor.json", "xquad.en.json")]
K, M = 2**10, 2**20


def run(job: tuple[str, list[int], list[str], int, Path]) -> None:
    """One task in a process of its own."""
    name, lengths, methods, samples, out = job
    config = ReadingConfig()

    async def through() -> None:
        running = evaluate(
            resolve_reader("extractive", config=config),
            [make_task(name, open_source(NOVELS))],
            lengths=lengths,
            methods=methods,
            samples=samples,
            out=out,
            config=config,
        )
        async for _ in running:
            pass

    asyncio.run(through())


def main() -> None:
    out = Path(sys.argv[1])
    started = perf_counter()
    jobs = []
    for name in RULER:
        folder = out / "ruler" / name
        jobs.append((name, [8 * K, 128 * K, M], ["memagent"], 20, folder))
        jobs.append((name, [M * 7 // 2], ["memagent"], 3, folder / "longest"))
    questions = out / "questions"
    jobs += [(name, [100 * K, M], [*METHODS], 20, questions / Path(name).stem) for name in FILES]
    with ProcessPoolExecutor(2) as processes:
        list(processes.map(run, jobs))
    for part in ("ruler", "questions"):
        results = [row for file in (out / part).rglob("samples.jsonl") for row in load(file.parent)]
        write_report(out / part, results, "The built-in reader, chunks of 5,000, memory of 1,024")
        print(markdown(cells(results)), details(cells(results)), sep="\n")
    print(f"{perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
