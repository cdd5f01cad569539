"""What `memagent serve` costs a request that is only passed on, against direct calls.

    python benchmarks/serving_speed.py --seconds 5

A stub that answers at once stands for the model's server. The same clients call it directly and
through `memagent serve`, each in a process of its own, with bodies of 1 KB and 17 KB. It prints
JSON: requests a second, milliseconds that a request took in the middle, and, of the server,
milliseconds of processor a request. Exits with 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from serving_load import completion, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = (1, 32)
KILOBYTES = (1, 17)
WINDOW = 32_768
"""Tokens of the stub's model: each request fits."""
_TICK = os.sysconf("SC_CLK_TCK")


class Stub(asyncio.Protocol):
    """Answers each request at once; only as much HTTP as its clients here speak."""

    def __init__(self) -> None:
        card = {"id": "small", "object": "model", "max_model_len": WINDOW, "owned_by": "vllm"}
        models = json.dumps({"object": "list", "data": [card]}).encode()
        self._answers = {b"GET": _answer(models), b"POS": _answer(completion({})[1].encode())}
        self._came = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, rest = self._came.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if end and len(rest) >= int(length or b"0"):
            self._transport.write(self._answers[bytes(self._came[:3])])  # type: ignore[attr-defined]
            self._came.clear()


def _answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def serve_stub(port: int) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        await (await loop.create_server(Stub, "127.0.0.1", port)).serve_forever()

    asyncio.run(serve())


@contextmanager
def servers(folder: Path, options: list[str]) -> Iterator[tuple[str, str, int]]:
    """Addresses of the server and of the stub, and the server's process id."""
    ports = [free_port(), free_port()]
    behind = multiprocessing.get_context("spawn").Process(target=serve_stub, args=(ports[1],))
    behind.start()
    command = [sys.executable, "-m", "memagent_openai_server", "--port", str(ports[0])]
    command += ["--model", "openai:small", "--base-url", f"http://127.0.0.1:{ports[1]}/v1"]
    command += ["--store", str(folder / "store.sqlite"), *options]
    wait_for(f"http://127.0.0.1:{ports[1]}/v1/models")
    with (folder / "log").open("wb") as log:
        front = subprocess.Popen(command, stderr=log)
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        wait_for(f"{urls[0]}/health")
        yield urls[0], urls[1], front.pid
    finally:
        front.terminate()
        behind.terminate()
        front.wait()
        behind.join()


def processor(pid: int) -> float:
    """Seconds of processor that a process and its children have had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:13])) / _TICK + sum(processor(int(child)) for child in children)


async def load(url: str, body: bytes, clients: int, seconds: float) -> list[float]:
    """Milliseconds that each request took."""
    took: list[float] = []
    headers = {"content-type": "application/json"}
    # Made before the time begins: 32 of them take a second.
    made = [httpx.AsyncClient(base_url=url, timeout=60, headers=headers) for _ in range(clients)]
    until = time.monotonic() + seconds

    async def client(http: httpx.AsyncClient) -> None:
        async with http:
            while time.monotonic() < until:
                begun = time.perf_counter()
                (await http.post("/v1/chat/completions", content=body)).raise_for_status()
                took.append((time.perf_counter() - begun) * 1000)

    await asyncio.gather(*map(client, made))
    return took


def measure(folder: Path, seconds: float, options: list[str]) -> Iterator[dict[str, Any]]:
    with servers(folder, options) as (url, behind, pid):
        for clients in CLIENTS:
            for kilobytes in KILOBYTES:
                content = "Item 7 stands on shelf 3. " * (kilobytes * 1024 // 26)
                messages = [{"role": "user", "content": content}]
                body = json.dumps({"model": "small", "messages": messages}).encode()
                asyncio.run(load(url, body, clients, 1))
                direct = asyncio.run(load(behind, body, clients, seconds))
                before = processor(pid)
                through = asyncio.run(load(url, body, clients, seconds))
                used = processor(pid) - before
                yield {
                    "clients": clients,
                    "KB": kilobytes,
                    "direct a second": round(len(direct) / seconds),
                    "through a second": round(len(through) / seconds),
                    "ratio": round(len(through) / len(direct), 2),
                    "ms direct": round(statistics.median(direct), 2),
                    "ms through": round(statistics.median(through), 2),
                    "processor ms a request": round(used * 1000 / len(through), 2),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5)
    options, others = parser.parse_known_args()  # the others are `memagent serve`'s
    with tempfile.TemporaryDirectory() as folder:
        for found in measure(Path(folder), options.seconds, others):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
