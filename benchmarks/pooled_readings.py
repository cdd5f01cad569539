"""What a call costs when one worker reads for hundreds of rollouts of Agent Lightning at once.

A scripted gateway in another process answers at once; the documents have 28,000 tokens, read in
chunks of 5,000, as in the paper. What the worker's process spends is its overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from memagent_agent_lightning import Worker
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TESTS = Path(__file__).parents[1] / "integrations" / "agent-lightning" / "tests"
NOTES = "The builder of the mill was born in Husum, as the third section says. " * 8


def write_documents(folder: Path, count: int, tokens: int) -> list[Path]:
    counter, paths = EstimatingTokenizer(), []
    for number in range(count):
        lines = [f"On day {n} the mayor of ward {n * 7 + number} spoke." for n in range(9_000)]
        text = "\n".join(lines)
        text = text[: len(text) * tokens // counter.count(text)]
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text(text, "utf-8")
    return paths


def serve(rollouts: int, paths: list[Path], connection: Connection) -> None:
    """Be the gateway until every rollout is read; send its address, then what it saw."""
    sys.path.insert(0, str(TESTS))
    from gateway import Gateway

    async def until_read() -> None:
        async with Gateway(lambda _prompt: NOTES, hold=rollouts) as gateway:
            for number in range(rollouts):
                path = str(paths[number % len(paths)])
                task = {"question": "Where was he born?", "answers": ["Husum"], "path": path}
                gateway.add(f"r{number}", task)
            connection.send(gateway.url)
            while gateway.under_way:  # noqa: ASYNC110 - the gateway knows no events
                await asyncio.sleep(0.1)
            calls = sum(len(one["calls"]) for one in gateway.rollouts.values())
            connection.send({"calls": calls, "most": gateway.most})
            connection.recv()

    asyncio.run(until_read())


async def read(url: str, connection: Connection) -> dict[str, Any]:
    """Read all there is; what the gateway saw of it, and what it took."""
    worker = Worker(url, readings=2_000, poll=0.2)
    began, started = process_time(), perf_counter()
    running = asyncio.create_task(worker.run())
    seen: dict[str, Any] = await asyncio.to_thread(connection.recv)
    worker.stop()
    await running
    spent = {"processor": process_time() - began, "seconds": perf_counter() - started}
    return seen | spent | {"done": worker.done, "failed": worker.failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=500)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=28_000)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        paths = write_documents(Path(folder), given.documents, given.tokens)
        ours, theirs = get_context("spawn").Pipe()
        gateway = get_context("spawn").Process(target=serve, args=(given.rollouts, paths, theirs))
        gateway.start()
        found = asyncio.run(read(ours.recv(), ours))
        ours.send(None)
        gateway.join()
    print(
        f"{found['done']} rollouts read, {found['failed']} failed, {found['most']} calls at once, "
        f"{found['calls']} calls in {found['seconds']:.1f} s: "
        f"{1000 * found['processor'] / found['calls']:.1f} ms of processor a call"
    )


if __name__ == "__main__":
    main()
