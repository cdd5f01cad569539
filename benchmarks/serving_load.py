"""Many clients that stream from `memagent serve`, of which a third leave in the middle.

    python benchmarks/serving_load.py --clients 200 --seconds 60

The server runs in a process of its own in front of a scripted model server in another, which
takes 20 ms for a reply. Four requests in five are long, each with a question of its own, so that
nothing is reused. It prints JSON: what became of the requests; tasks, open files and memory of the
server before, half way and after; calls of the model after the last client was gone; and how many
chunks were read when readings that had been abandoned were asked for again. Exits with 1 if
anything leaked, or was wrong and not the client's doing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

if TYPE_CHECKING:
    from collections.abc import Iterator

DELAY = 0.02
CHUNKS = 11
"""Of a long request."""
SENTENCES = 1200
CHUNK = 1000
AGAIN = 20
TEXT = " ".join(f"Item {number} stands on shelf {number % 7}." for number in range(SENTENCES))
GROWTH = 1.3
"""How much more there may be after the second half of the load than after the first."""


async def model(scope: Any, receive: Any, send: Any) -> None:
    """The scripted model server: an ASGI application."""
    if scope["type"] != "http":
        return
    body = b""
    while scope["method"] == "POST":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    model.calls += scope["method"] == "POST"  # type: ignore[attr-defined]
    kind, reply = b"application/json", json.dumps({"calls": model.calls})  # type: ignore[attr-defined]
    if scope["path"].endswith("/models"):
        card = {"id": "small", "object": "model", "max_model_len": 4096, "owned_by": "vllm"}
        reply = json.dumps({"object": "list", "data": [card]})
    elif scope["method"] == "POST":
        await asyncio.sleep(DELAY)
        kind, reply = completion(json.loads(body))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": reply.encode()})


model.calls = 0  # type: ignore[attr-defined]


def completion(request: dict[str, Any]) -> tuple[bytes, str]:
    head = {"id": "c", "created": 0, "model": "small"}
    choice = {"index": 0, "finish_reason": "stop"}
    if request.get("stream"):
        delta = {"role": "assistant", "content": "Noted."}
        part = {**head, "object": "chat.completion.chunk", "choices": [{**choice, "delta": delta}]}
        return b"text/event-stream", f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n"
    message = {"role": "assistant", "content": "Noted."}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    whole = {**head, "object": "chat.completion", "choices": [{**choice, "message": message}]}
    return b"application/json", json.dumps({**whole, "usage": usage})


def serve_model(port: int) -> None:
    uvicorn.run(model, host="127.0.0.1", port=port, log_level="error", lifespan="off")


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Addresses of server and model server, and the server's process id."""
    ports = [free_port(), free_port()]
    behind = multiprocessing.get_context("spawn").Process(target=serve_model, args=(ports[1],))
    behind.start()
    command = [sys.executable, "-m", "memagent_openai_server", "--port", str(ports[0])]
    command += ["--model", "openai:small", "--base-url", f"http://127.0.0.1:{ports[1]}/v1"]
    command += ["--chunk-tokens", str(CHUNK), "--memory-tokens", "300", "--answer-tokens", "300"]
    command += ["--store", str(folder / "store.sqlite")]
    with (folder / "log").open("wb") as log:
        front = subprocess.Popen(command, stderr=log)
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        wait_for(f"{urls[0]}/health")
        wait_for(f"{urls[1]}/v1/models")
        yield urls[0], urls[1], front.pid
    finally:
        front.terminate()
        behind.terminate()
        front.wait()
        behind.join()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(url: str) -> None:
    give_up = time.monotonic() + 60
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            return


class Load:
    """The clients, and what became of their requests.

    Args:
        url: of the server.
        leave: share of the requests that are abandoned.
    """

    def __init__(self, url: str, leave: float) -> None:
        self.url = url
        self.leave = leave
        self.counts: Counter[str] = Counter()
        self.abandoned: list[tuple[str, int]] = []
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
                leaves = rng.randrange(CHUNKS) if rng.random() < self.leave else None
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
                    if long:
                        self.abandoned.append((question, leaves))
                    return
        if response.status_code != 200 or not ended:
            self.wrong.append(f"{response.status_code}, ended: {ended}")
        self.counts["long" if long else "short"] += 1

    async def again(self, http: httpx.AsyncClient, question: str) -> dict[str, Any]:
        """Ask an abandoned question once more."""
        body = {"model": "small", "messages": messages(question, long=True)}
        response = await http.post("/v1/chat/completions", json=body)
        found: dict[str, Any] = response.raise_for_status().json()["memagent"]
        return found


def messages(question: str, *, long: bool) -> list[dict[str, str]]:
    content = f"{TEXT}\n\n{question}" if long else question
    return [{"role": "user", "content": content}]


async def state(http: httpx.AsyncClient, pid: int, behind: str) -> dict[str, float]:
    """Tasks, readings, open files and resident megabytes of the server."""
    text = (await http.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    return {
        "tasks": float(values["memagent_tasks"]),
        "requests": float(values["memagent_requests_under_way"]) - 1,
        "readings": float(values["memagent_readings_under_way"]),
        **process(pid, behind),
    }


def process(pid: int, behind: str) -> dict[str, float]:
    """Connections to `behind` are not counted as files: as many are kept as the load called for."""
    port = f":{int(behind.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()]
    kept = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(port)}
    files = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            files += str(path.readlink()) not in kept
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {"files": files, "megabytes": round(pages * 4096 / 2**20, 1)}


async def idle(http: httpx.AsyncClient, pid: int, behind: str) -> dict[str, float]:
    """The state once nothing is under way any more, or after 30 seconds."""
    for _ in range(300):
        found = await state(http, pid, behind)
        if not found["requests"] and not found["readings"]:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    return await state(http, pid, behind)


async def phase(load: Load, clients: int, seconds: float) -> None:
    load.stop = False
    running = [asyncio.ensure_future(load.client(number)) for number in range(clients)]
    await asyncio.sleep(seconds)
    load.stop = True
    await asyncio.gather(*running)


async def measure(
    url: str, behind: str, pid: int, *, clients: int, seconds: float, leave: float
) -> dict[str, Any]:
    load = Load(url, leave)
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await load.ask(http, "Warm up?", long=True)
        load.counts.clear()
        before = await idle(http, pid, behind)
        await phase(load, clients, seconds / 2)
        half = await idle(http, pid, behind)
        await phase(load, clients, seconds / 2)
        after = await idle(http, pid, behind)
        calls = [(await http.get(f"{behind}/calls")).json()["calls"]]
        await asyncio.sleep(1)
        calls.append((await http.get(f"{behind}/calls")).json()["calls"])
        found = [await load.again(http, question) for question, _ in load.abandoned[-AGAIN:]]
        fresh = await load.again(http, "And a question that nobody asked before?")
    return {
        "clients": clients,
        "seconds": seconds,
        **load.counts,
        "wrong": load.wrong,
        "before": before,
        "half way": half,
        "after": after,
        "calls after the last client": calls[1] - calls[0],
        "chunks of a reading": fresh["chunks"],
        "chunks that the client had seen when it left": [
            seen for _, seen in load.abandoned[-AGAIN:]
        ],
        "chunks read when asked again": [again["chunks"] for again in found],
    }


def leaks(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    before, half, after = found["before"], found["half way"], found["after"]
    problems = [f"{len(found['wrong'])} wrong"] if found["wrong"] else []
    problems += [
        f"{name}: {before[name]}, then {after[name]}"
        for name in ("tasks", "requests", "readings")
        if after[name] > before[name]
    ]
    if after["files"] > GROWTH * half["files"]:
        problems.append(f"files: {half['files']}, then {after['files']}")
    if after["megabytes"] > GROWTH * half["megabytes"]:
        problems.append(f"memory: {half['megabytes']} MB, then {after['megabytes']} MB")
    seen = found["chunks that the client had seen when it left"]
    for before_it, again in zip(seen, found["chunks read when asked again"], strict=True):
        if before_it + again > CHUNKS:
            problems.append(f"{before_it} chunks were read, and then {again}")
    if found["calls after the last client"]:
        problems.append("readings went on for nobody")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--leave", type=float, default=1 / 3)
    options = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (url, behind, pid):
        found = asyncio.run(measure(url, behind, pid, **options))
    problems = leaks(found)
    print(json.dumps({**found, "problems": problems}, indent=2))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
