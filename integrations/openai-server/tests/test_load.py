"""The measurements of benchmarks/serving.py, made briefly."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
from servers.http_process import http_process
from servers.openai_server import OpenAIServer

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import serving

HANG = 20.0
"""Seconds: what is asked for meanwhile takes a hundredth."""
TEXT = "Item 7 stands on shelf 3. "


def body_of(messages: str) -> bytes:
    return f'{{"model": "small", "messages": [{messages}]}}'.encode()


SIZE = 8 * 2**20
BODIES = (
    b'{"' + b'\\"' * (SIZE // 2),  # a text without an end
    b"[" + b"[]," * (SIZE // 3),
    body_of(f'{{"role": "user", "content": "{TEXT * (SIZE // len(TEXT))}"}}'),
    body_of(",".join(['{"role": "user", "content": ""}'] * 60_000)),
)

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path, environment):
    """A server as the benchmark starts it: its URL, the model behind it, and its process."""

    def reply(_):
        time.sleep(serving.DELAY)
        return "Noted."

    model = OpenAIServer(reply)
    model.models = [{"id": "small", "max_model_len": 4096, "owned_by": "vllm"}]
    words = ["-m", "memagent_openai_server", "--model", "openai:small", "--base-url"]
    words += [model.base_url, "--store", tmp_path / "store.sqlite"]
    for field in (f"chunk_tokens={serving.CHUNK}", "memory_tokens=300", "answer_tokens=300"):
        words += ["--set", field]
    with http_process(*words, log=tmp_path / "log", env=environment) as (url, process):
        yield url, model, process.pid
    model.close()


def test_clients_that_come_and_go_leave_nothing_behind(server, monkeypatch):
    monkeypatch.setattr(serving, "SHORT", 3)

    found = asyncio.run(serving.measure(*server, clients=20, seconds=2))

    assert serving.find_leaks(found) == []
    assert min(found["left"], found["long"], found["short"]) > 0


def send(url, body):
    """Post a body, and leave after a second where that would be read; the status, or None."""
    timeout = httpx.Timeout(600, read=1.0 if TEXT.encode() in body[:200] else 600)
    try:
        sent = {"content": body, "headers": {"content-type": "application/json"}}
        return httpx.post(f"{url}/v1/chat/completions", **sent, timeout=timeout).status_code
    except httpx.ReadTimeout:
        return None


def test_no_hostile_body_keeps_others_waiting(server):
    took, over = [], Event()

    def watch():
        with httpx.Client(base_url=server[0], timeout=600) as http:
            while not over.is_set():
                begun = time.perf_counter()
                http.get("/health").raise_for_status()
                took.append(time.perf_counter() - begun)

    watching = Thread(target=watch)
    watching.start()
    found = {send(server[0], body) for body in BODIES}
    time.sleep(0.5)  # the server puts away what it had
    over.set()
    watching.join()

    assert found <= {200, 400, None}
    assert max(took) < HANG
