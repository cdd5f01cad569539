"""Clients that leave and servers that stop: no reading goes on for nobody, and none is lost."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import openai
import pytest
from fixed_readers import ChainReader
from servers.redis_server import wait_until

from memagent_graph import ReadingConfig
from memagent_graph.memory.stores import open_store
from memagent_openai_server import Limits

CHUNKS = ReadingConfig(chunk_tokens=200)
until = partial(wait_until, what="it")


@pytest.fixture
def reader():
    """One whose every step is known, and takes its time."""
    return ChainReader(delay=0.05)


@pytest.fixture
def slow(serve, reader):
    return serve(reader, config=CHUNKS)


def ask(messages, **fields) -> dict:
    return {"model": "chain", "messages": messages, **fields}


@pytest.mark.slow
def test_a_reading_ends_with_its_client_s_connection_and_goes_on_later(slow, reader, asked, stream):
    body = json.dumps(ask(asked(), stream=stream)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with slow.connect() as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: len(reader.spans) > 3)
    until(lambda: slow.metric("memagent_readings_under_way") == 0)
    left = len(reader.spans)
    time.sleep(0.3)
    assert len(reader.spans) == left

    whole = slow.client().chat.completions.create(**ask(asked()))

    spans = reader.spans
    assert whole.memagent["coverage"] == 1.0
    assert len(set(spans)) == len(spans) or len(spans) == len(set(spans)) + 1  # the one cut off
    assert slow.metric("memagent_requests_abandoned_total") == 1


def test_a_stream_that_is_passed_on_ends_at_the_model_too(behind, upstream):
    behind.client().models.list()  # for which the model's server was asked
    before, accepted = connections(upstream.port), upstream.accepted
    upstream.script = ["hang"]
    with pytest.raises(openai.APITimeoutError):
        behind.client(timeout=0.5).chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Hello"}]
        )

    until(lambda: upstream.accepted == accepted + 1)
    until(lambda: behind.metric("memagent_requests_under_way") == 1)
    until(lambda: connections(upstream.port) == before)


def connections(port: int) -> int:
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_a_client_that_waits_for_its_turn_is_told_that_all_is_well(serve, asked, monkeypatch):
    monkeypatch.setattr("memagent_openai_server.delivery._ALIVE_EVERY", 0.05)
    server = serve(ChainReader(delay=0.5), config=CHUNKS, limits=Limits(readings=1))
    said = [{"role": "user", "content": "One. Two.\n\nThree?"}]

    lines = server.post(json=ask(said, stream=True)).text.splitlines()
    by_the_sdk = server.ask([{**said[0], "content": "Four?"}], model="chain", stream=True)

    assert lines.count(": still reading") > 3
    assert lines[-2] == "data: [DONE]"
    assert "".join(part.choices[0].delta.content or "" for part in by_the_sdk)


@pytest.mark.slow
def test_a_server_that_stops_says_so_and_the_next_server_goes_on(serve, asked, stream, tmp_path):
    with open_store(str(tmp_path / "store.sqlite")) as store:
        first, second = ChainReader(delay=0.05), ChainReader()
        server = serve(first, config=CHUNKS, store=store)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(lambda: [*server.ask(asked(), model="chain", stream=stream)])
            until(lambda: len(first.spans) > 5)
            server.signal()
        server.close()
        other = serve(second, config=CHUNKS, store=store)
        found = other.client().chat.completions.create(**ask(asked()))

    with pytest.raises(openai.APIError, match="the reading continues where it stopped"):
        waiting.result()
    assert found.memagent["coverage"] == 1.0
    assert len(set(first.spans) & set(second.spans)) <= 1
    assert second.spans[-1][1] == max(end for _, end in first.spans + second.spans)


def test_what_is_passed_on_comes_to_its_end_when_the_server_stops(behind, upstream, stream):
    asked, replied = threading.Event(), threading.Event()

    def reply(_):
        asked.set()
        assert replied.wait(240)
        return "All of it."

    upstream.reply = reply

    def wait():
        got = behind.ask([{"role": "user", "content": "Hello"}], stream=stream)
        if not stream:
            return got.choices[0].message.content
        return "".join(part.choices[0].delta.content or "" for part in got if part.choices)

    with ThreadPoolExecutor() as pool:
        found = pool.submit(wait)
        assert asked.wait(240)
        behind.signal()
        replied.set()

    assert found.result() == "All of it."


def test_two_turns_of_one_session_at_once_lose_nothing(serve, text):
    reader = ChainReader(delay=0.02)
    server = serve(reader, config=CHUNKS)
    names = {"x-memagent-session": "monday"}

    def one(number):
        content = f"{text(60, needle=f'News {number}.')}\n\nWhat is new?"
        messages = [{"role": "user", "content": content}]
        server.ask(messages, model="chain", extra_headers=names)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(6)))

    bank = server.service.memories(None).bank
    history = bank.history("session monday")
    assert len({version.document.digest for version in history}) == 6
    assert [one.parent for one in history[:-1]] == [one.id for one in history[1:]]
