"""python benchmarks/ray_overhead.py: what a Ray cluster costs, against one process.

The same documents, each read for its question with the built-in reader: by `read_many` in one
process, so many at once, and by `read_dataset` with as many actors, on a cluster of this machine.
Both take turns, and the shortest time of each counts: others may use the machine as well. Three
ratios: with the start of the cluster; without it; and without that of the actors, which is what a
run over one line for each actor takes.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from memagent_graph import create_memagent, read_many

CHARACTERS = 400_000
"""Of a document: about 100,000 tokens, which the built-in reader takes some 0.3 seconds for."""
FACT = "The vault of Elk {0} opens at {0}:40."


def tasks(count: int) -> list[dict[str, Any]]:
    """Documents that are all different, each with a fact in it."""
    folder = os.environ.get("MEMAGENT_DATA")
    novel = Path(folder, "war_and_peace.txt").read_text("utf-8") if folder else None
    text = novel or "\n".join(topics.values()) * 4
    found = []
    for number in range(count):
        start = number * 9973 % (len(text) - CHARACTERS)
        part = text[start : start + CHARACTERS]
        half = CHARACTERS // 2
        document = f"{part[:half]}\n\n{FACT.format(number)}\n\n{part[half:]}"
        found.append({"question": f"When does the vault of Elk {number} open?", "text": document})
    return found


def in_one_process(rows: list[dict[str, Any]], workers: int) -> float:
    asked = [{"question": row["question"], "document": row["text"]} for row in rows]
    agent = create_memagent("extractive")
    started = time.perf_counter()
    for result in read_many(agent, asked, concurrency=workers):
        assert result.error is None, result.error
    return time.perf_counter() - started


def on_cluster(rows: list[dict[str, Any]], workers: int) -> float:
    import ray

    from memagent_ray import read_dataset

    started = time.perf_counter()
    dataset = ray.data.from_items(rows)
    read = read_dataset(dataset, model="extractive", actors=workers, batch_size=1)
    answered = read.take_all()
    seconds = time.perf_counter() - started
    assert len(answered) == len(rows)
    assert all(row["error"] is None and "opens at" in row["answer"] for row in answered)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = tasks(asked.tasks)
    lines = [{**row, "text": FACT.format(number)} for number, row in enumerate(rows)]
    started = time.perf_counter()
    ray.init(
        address="local",
        num_cpus=max(asked.workers),
        include_dashboard=False,
        logging_level=logging.ERROR,
    )
    cluster = time.perf_counter() - started
    alone = in_one_process(rows[:1], 1)
    print(f"{len(rows)} tasks of {alone:.2f} s; the cluster started in {cluster:.1f} s", flush=True)
    for workers in asked.workers:
        runs = [
            (
                in_one_process(rows, workers),
                on_cluster(rows, workers),
                on_cluster(lines[:workers], workers),
            )
            for _ in range(asked.repeats)
        ]
        here, there, start = map(min, zip(*runs, strict=True))
        print(
            f"{workers} at once: read_many {here:.1f} s, read_dataset {there:.1f} s, of which "
            f"{start:.1f} s start its actors: {(there + cluster) / here:.2f} with the cluster's "
            f"start, {there / here:.2f} without, {(there - start) / here:.2f} without the actors'",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
