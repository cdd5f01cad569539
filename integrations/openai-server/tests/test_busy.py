"""While a long body is worked on, others are answered."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from memagent_graph.readers import extractive
from memagent_openai_server import reading, requests, responses

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "serving_hostile.py"
POLLS = 20
HANG = 20.0
"""Seconds: what is asked for meanwhile takes a hundredth."""


def test_others_are_answered_while_a_body_is_parsed(shared, monkeypatch):
    parse, parsing, polled = requests.parse, threading.Event(), threading.Event()

    def held(body, kind):
        parsing.set()
        assert polled.wait(240), "nobody else was answered"
        return parse(body, kind)

    monkeypatch.setattr(requests, "parse", held)
    content = f'{{"model": "extractive", "messages": "{"x" * 200_000}"}}'
    found = []
    sending = threading.Thread(
        target=lambda: found.append(
            shared.post(content=content, headers={"content-type": "application/json"})
        )
    )
    sending.start()
    assert parsing.wait(240)
    answers = [httpx.get(f"{shared.url}/health", timeout=240).status_code for _ in range(POLLS)]
    polled.set()
    sending.join()

    assert answers == [200] * POLLS
    assert found[0].status_code == 400


@pytest.fixture
def threads_of(monkeypatch):
    """Note in which threads a function is called: by its place and its name."""

    def watch(place, name) -> set[int]:
        work, threads = getattr(place, name), set()

        def noted(*args, **options):
            threads.add(threading.get_ident())
            return work(*args, **options)

        monkeypatch.setattr(place, name, noted)
        return threads

    return watch


@pytest.mark.parametrize(
    ("path", "place", "name"),
    [
        (CHAT, requests, "parse"),
        (CHAT, reading, "split_messages"),
        (CHAT, reading.Reading, "_question"),
        (CHAT, reading, "TextSource"),
        (RESPONSES, responses, "_to_chat"),
    ],
)
def test_a_long_text_is_worked_on_in_a_thread_beside_the_event_loop(
    shared, threads_of, asked, path, place, name
):
    threads, turns = threads_of(place, name), asked(5_000)
    turns.insert(0, {**turns[0], "role": "system"})
    body = {"model": "extractive", "messages" if path == CHAT else "input": turns}

    found = shared.post(path, json=body)

    assert found.status_code == 200
    assert threads
    assert shared.loop_thread not in threads


def test_the_built_in_reader_reads_and_answers_in_a_thread_beside_the_event_loop(
    shared, threads_of, asked, needle
):
    read, answered = threads_of(extractive, "relevance"), threads_of(extractive, "best_two")

    found = shared.post(json={"model": "extractive", "messages": asked()})

    assert needle in found.json()["choices"][0]["message"]["content"]
    assert read
    assert answered
    assert shared.loop_thread not in read | answered


@pytest.mark.slow
def test_no_hostile_body_keeps_others_waiting(environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", BENCHMARK, "--megabytes", "8"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )

    found = json.loads(done.stdout)
    assert {each["status"] for each in found.values()} <= {200, 400, "left"}
    assert all(each["answers"] for each in found.values())
    assert max(each["longest ms"] for each in found.values()) < HANG * 1000
