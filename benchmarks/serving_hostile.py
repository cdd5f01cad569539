"""How long `memagent serve` keeps others waiting while hostile bodies are worked on.

    python benchmarks/serving_hostile.py --megabytes 32

Bodies of each kind are sent one after the other, and a second process asks for /health throughout,
one request after the other. It prints JSON: for each kind the status, the seconds until the answer,
how often /health was answered, and the longest that it took, in milliseconds. Texts that are read
are given up after a second of reading.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from serving_load import servers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

GIVE_UP = 1.0
"""Seconds after which the client of a text that is read leaves."""


def bodies(size: int) -> dict[str, bytes]:
    """Bodies of so many bytes, by what is hostile about them."""

    def saying(text: str) -> bytes:
        content = text * (size // len(text.encode())) + " Where is item 7?"
        message = f'{{"role": "user", "content": "{content}"}}'
        return f'{{"model": "small", "messages": [{message}]}}'.encode()

    def messages(each: bytes) -> bytes:
        many = min(60_000, size // len(each))
        return b'{"model": "small", "messages": [' + b",".join([each] * many) + b"]}"

    return {
        "a text of escapes without an end": b'{"' + b'\\"' * (size // 2),
        "a text of escaped lines": saying("\\n"),
        "a text of one letter": saying("x"),
        "a text of sentences": saying("Item 7 stands on shelf 3. "),
        "a text of another script": saying("\u6c49"),
        "empty texts": b'["' + b'","' * (size // 3),
        "empty lists": b"[" + b"[]," * (size // 3),
        "lists within lists": b"[" * size,
        "spaces": b" " * size,
        "a long number": b"[" + b"1" * size + b"]",
        "60,000 messages without a role": messages(b'{"role": 7}'),
        "60,000 messages": messages(b'{"role": "user", "content": ""}'),
    }


def watch(url: str, told: Connection) -> None:
    """Ask for /health until something is told, and then tell what was longest, and how often."""
    longest, answers = 0.0, 0
    with httpx.Client(base_url=url, timeout=600) as http:
        while not told.poll():
            begun = time.perf_counter()
            http.get("/health").raise_for_status()
            longest, answers = max(longest, time.perf_counter() - begun), answers + 1
            if answers == 1:
                told.send("asking")
    told.send((longest, answers))


def send(url: str, body: bytes) -> int | str:
    timeout = httpx.Timeout(600, read=GIVE_UP) if b"Where is item 7?" in body[-40:] else 600
    try:
        kind = {"content-type": "application/json"}
        answer = httpx.post(
            f"{url}/v1/chat/completions", content=body, headers=kind, timeout=timeout
        )
    except httpx.ReadTimeout:
        return "left"
    return answer.status_code


def measure(url: str, body: bytes) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    watching = multiprocessing.get_context("spawn").Process(target=watch, args=(url, there))
    watching.start()
    here.recv()  # it asks
    begun = time.perf_counter()
    status = send(url, body)
    seconds = time.perf_counter() - begun
    time.sleep(0.5)  # the server puts away what it had
    here.send("stop")
    longest, answers = here.recv()
    watching.join()
    return {
        "status": status,
        "seconds": round(seconds, 2),
        "answers": answers,
        "longest ms": round(longest * 1000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=31)
    size = parser.parse_args().megabytes * 2**20
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as (url, _, _):
        found = {kind: measure(url, body) for kind, body in bodies(size).items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
