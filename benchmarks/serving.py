"""What `memagent serve` does under load.

    python benchmarks/serving.py --clients 200 --seconds 60

The server runs in a process of its own, in front of a scripted model server that takes 20 ms for a
reply. Many clients stream, of which a third leave in the middle. Four requests in five are long,
each with a question of its own, so that nothing is reused. Printed as JSON are what a short request
takes through the server and without it, in turns and before the load; what became of the requests;
tasks and memory of the server before, half way and after; and calls of the model after
the last client was gone. Exits with 1 if anything leaked, or was wrong and not the client's doing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.openai_server import OpenAIServer
from servers.redis_server import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DELAY = 0.02
CHUNKS = 11
"""Of a long request."""
SENTENCES = 1200
CHUNK = 1000
LEAVE = 1 / 3
"""Share of the requests that are abandoned."""
SHORT = 300
"""Short requests each way, before the load."""
TEXT = " ".join(f"Item {number} stands on shelf {number % 7}." for number in range(SENTENCES))
GROWTH = 1.3
"""How much more memory there may be after the second half of the load than after the first."""


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, OpenAIServer, int]]:
    """Address of the server, the model server, and the server's process id."""

    def reply(_: dict[str, Any]) -> str:
        time.sleep(DELAY)
        return "Noted."

    model = OpenAIServer(reply)
    model.models = [{"id": "small", "max_model_len": 4096, "owned_by": "vllm"}]
    port = free_port()
    command = [sys.executable, "-m", "memagent_openai_server", "--port", str(port)]
    command += ["--model", "openai:small", "--base-url", model.base_url]
    for field in (f"chunk_tokens={CHUNK}", "memory_tokens=300", "answer_tokens=300"):
        command += ["--set", field]
    command += ["--store", str(folder / "store.sqlite")]
    with (folder / "log").open("wb") as log:
        front = subprocess.Popen(command, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_healthy(url), "memagent serve")
        yield url, model, front.pid
    finally:
        front.terminate()
        front.wait()
        model.close()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


class Load:
    """The clients of the server at a URL, and what became of their requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.stop = False

    async def client(self, number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=self.url, timeout=300) as http:
            turn = 0
            while not self.stop:
                turn += 1
                question = f"Where is item {rng.randrange(SENTENCES)}, asks {number} at {turn}?"
                long = rng.random() < 0.8
                # After some events, of which a long request has one for each chunk.
                leaves = rng.randrange(CHUNKS) if rng.random() < LEAVE else None
                try:
                    await self.ask(http, question, long=long, leaves=leaves)
                except httpx.HTTPError as error:
                    self.wrong.append(f"{type(error).__name__}: {error}")

    async def ask(
        self, http: httpx.AsyncClient, question: str, *, long: bool, leaves: int | None = None
    ) -> None:
        body = {"model": "small", "stream": True, "messages": messages(question, long=long)}
        events, ended = 0, False
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                events += line.startswith("data:")
                ended = ended or line == "data: [DONE]"
                if '"error"' in line:
                    self.wrong.append(line[:200])
                if leaves is not None and events > leaves and not ended:
                    self.counts["left"] += 1
                    return
        if response.status_code != 200 or not ended:
            self.wrong.append(f"{response.status_code}, ended: {ended}")
        self.counts["long" if long else "short"] += 1


def messages(question: str, *, long: bool) -> list[dict[str, str]]:
    content = f"{TEXT}\n\n{question}" if long else question
    return [{"role": "user", "content": content}]


async def idle(http: httpx.AsyncClient, pid: int, most: float = inf) -> dict[str, float]:
    """Tasks and resident megabytes of the server once nothing is under way, or after 30 seconds.

    What ends a request goes on for a moment after it, so `most` tasks are waited for as well.
    """
    for _ in range(300):
        text = (await http.get("/metrics")).text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
        requests, readings, tasks = (
            float(values[f"memagent_{name}"])
            for name in ("requests_under_way", "readings_under_way", "tasks")
        )
        if requests == 1 and not readings and tasks <= most:  # the request that asks
            break
        await asyncio.sleep(0.1)
    return {"tasks": tasks, "megabytes": psutil.Process(pid).memory_info().rss / 2**20}


async def phase(load: Load, clients: int, seconds: float) -> None:
    load.stop = False
    running = [asyncio.ensure_future(load.client(number)) for number in range(clients)]
    await asyncio.sleep(seconds)
    load.stop = True
    await asyncio.gather(*running)


async def pass_on(url: str, behind: str) -> dict[str, float]:
    """Medians in milliseconds of short requests to the model's server, and through ours, in turns.

    The reply itself takes `DELAY`, which both have and the ratio does not.
    """
    seconds: dict[str, list[float]] = {behind: [], url: []}
    body = {"model": "small", "messages": messages("Who is there?", long=False)}
    async with httpx.AsyncClient(timeout=300) as http:
        for number in range(SHORT * 2):
            place = (behind, url)[number % 2]
            begun = time.perf_counter()
            (await http.post(f"{place}/v1/chat/completions", json=body)).raise_for_status()
            seconds[place].append(time.perf_counter() - begun)
    direct, through = (1000 * statistics.median(seconds[place]) for place in (behind, url))
    own = 1000 * DELAY
    ratio = round((through - own) / (direct - own), 2)
    return {"direct": round(direct, 2), "through": round(through, 2), "ratio": ratio}


async def measure(
    url: str, model: OpenAIServer, pid: int, *, clients: int, seconds: float
) -> dict[str, Any]:
    load = Load(url)
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await load.ask(http, "Warm up?", long=True)
        load.counts.clear()
        short = await pass_on(url, model.base_url.removesuffix("/v1"))
        before = await idle(http, pid)
        await phase(load, clients, seconds / 2)
        half = await idle(http, pid, before["tasks"])
        await phase(load, clients, seconds / 2)
        after = await idle(http, pid, before["tasks"])
        calls = len(model.requests)
        await asyncio.sleep(1)
        late = len(model.requests) - calls
    return {
        "clients": clients,
        "seconds": seconds,
        "passed on, ms": short,
        **load.counts,
        "wrong": load.wrong,
        "before": before,
        "half way": half,
        "after": after,
        "calls after the last client": late,
    }


def find_leaks(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    problems = [f"{len(found['wrong'])} wrong"] if found["wrong"] else []
    for name, before, least in (("tasks", "before", 1.0), ("megabytes", "half way", GROWTH)):
        if found["after"][name] > least * found[before][name]:
            problems.append(f"{name}: {found[before][name]}, then {found['after'][name]}")
    if found["calls after the last client"]:
        problems.append("readings went on for nobody")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    given = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (url, model, pid):
        found = asyncio.run(measure(url, model, pid, **given))
    found["problems"] = find_leaks(found)
    print(json.dumps(found, indent=2))
    sys.exit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
