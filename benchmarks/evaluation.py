"""python benchmarks/evaluation.py OUT: the built-in reader on documents of 8K to 1M tokens.

Two tables: MemAgent and BM25 on the samples of `ruler_8k.jsonl` as they are, and six methods on
questions of the XQuAD, HotpotQA and NQ files of MEMAGENT_DATA among its novels. What is done is
not done again.
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
from memagent_graph.evaluation.run import cells, evaluate, load, markdown, write_report
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.evaluation.tasks.benchmarks import ruler_tasks
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.files import open_source

DATA = Path(os.environ["MEMAGENT_DATA"])
NOVELS = [DATA / "war_and_peace.txt", DATA / "moby-dick.txt"]
QUESTIONS = ("hotpotqa_distractor.json", "xquad.en.json", "nq_open.jsonl")
OFFICIAL = DATA / "ruler_8k.jsonl"
K, M = 2**10, 2**20


def run(job: tuple[str, list[int], list[str], int, Path]) -> None:
    """One task in a process of its own."""
    name, lengths, methods, samples, out = job
    config = ReadingConfig()
    official = name == str(OFFICIAL)
    tasks = ruler_tasks(OFFICIAL) if official else [make_task(name, open_source(NOVELS))]

    async def through() -> None:
        running = evaluate(
            resolve_reader("extractive", config=config),
            tasks,
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
    for file in QUESTIONS:
        folder = out / "questions" / Path(file).stem
        jobs.append((f"qa:{DATA / file}", [100 * K, M], [*METHODS], 20, folder))
    jobs.append((str(OFFICIAL), [], ["memagent", "bm25"], 20, out / "official"))
    with ProcessPoolExecutor(2) as processes:
        list(processes.map(run, jobs))
    for part in ("official", "questions"):
        results = [row for file in (out / part).rglob("samples.jsonl") for row in load(file.parent)]
        write_report(out / part, results, "The built-in reader, chunks of 5,000, memory of 1,024")
        print(markdown(cells(results)))
    print(f"{perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
