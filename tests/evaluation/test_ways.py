"""The harness that compares ways to read, in small: `benchmarks/ways.py`."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import Event

import pytest

from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LENGTH = 24_000
"""Tokens: five chunks."""


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("virtual_clock")


@pytest.fixture
def ways(clock, data):
    if not (data / "moby-dick.txt").exists():
        pytest.skip("the novels are not in MEMAGENT_DATA")
    return import_module("ways")


@pytest.fixture
def asked():
    lines = (f"The code of vault {n} is {n * n}.\n" for n in range(1000, 9000))
    text, counter = "", EstimatingTokenizer()
    while counter.count(text) < LENGTH - 100:
        text += "".join(islice(lines, 5))
    return "What is the code of vault 1234?", TextSource(text)


def test_time_jumps_to_the_next_timer(clock):
    async def wait():
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        await asyncio.sleep(60)
        return "done"

    assert clock.run(wait()) == ("done", pytest.approx(3660))


def test_time_stands_still_while_a_thread_works(clock):
    begun, may_end = Event(), Event()

    async def wait():
        asleep = asyncio.ensure_future(asyncio.sleep(1000))
        working = asyncio.ensure_future(asyncio.to_thread(work))
        await working
        assert not asleep.done()
        return asyncio.get_running_loop().time()

    def work():
        begun.set()
        return may_end.wait(0.2)

    assert clock.run(wait())[0] == 0
    assert begun.is_set()


@pytest.mark.parametrize(
    ("way", "setting", "calls", "chain"),
    [
        ("MemAgent", {}, 6, 6),
        ("map", {"segments": 1000}, 7, 3),
        ("BM25", {}, 1, 1),
    ],
)
def test_the_time_of_a_reading_is_its_longest_chain_of_calls(
    ways, clock, asked, way, setting, calls, chain
):
    found, seconds = clock.run(ways.read(way, setting, *asked))

    assert found.calls == calls
    assert seconds == pytest.approx(chain)
    assert found.input_tokens > 1000
    assert found.output_tokens > 0


@pytest.mark.parametrize("setting", [{}, {"segments": 2}, {"skim": "lexical"}])
async def test_both_clocks_see_the_same_reading(ways, clock, asked, setting):
    real = await ways.read("any", setting, *asked, seconds=0)
    virtual, _ = await asyncio.to_thread(clock.run, ways.read("any", setting, *asked))

    assert virtual == real


def test_a_run_that_was_cut_off_goes_on(ways, tmp_path):
    file, rows = tmp_path / "rows.jsonl", []
    job = ways.Job("qa:xquad.en.json", 6_000, 0, [("MemAgent", {}), ("BM25", {})])
    ways.do([job._replace(settings=job.settings[:1])], file, rows, processes=1)

    with file.open("a") as lines:
        lines.write('{"way": "BM2')
    again = ways.load(file)
    ways.do([job], file, again, processes=1)
    ways.do([job], file, again, processes=1)

    assert [row.way for row in again] == ["MemAgent", "BM25"]
    assert ways.load(file) == again
    assert all(row.question for row in again)


def test_settings_are_chosen_on_questions_that_are_not_reported(ways):
    some = [(task, index) for task in ways.tasks() for index in range(16)]
    chosen_on = {(job.task, job.index) for job in ways.choosing_jobs()}
    reported = {(job.task, job.index) for job in ways.reported_jobs({})}

    assert not chosen_on & reported
    assert 0.3 < sum(ways.is_reported(*one) for one in some) / len(some) < 0.7


def test_the_best_setting_is_chosen_and_of_equals_the_cheapest(ways):
    def row(way, setting, score, calls):
        task, index = next((j.task, j.index) for j in ways.choosing_jobs())
        about = (way, json.dumps(setting), task, 1, index, "?")
        return ways.Row(*about, score, score, calls, 0, 0, calls, 0.0, plain=False)

    rows = [
        row(way, setting, 0.5 if way == "map" else number, 10 - number)
        for way, some in ways.WAYS.items()
        for number, setting in enumerate(some)
    ]

    chosen = ways.choose(rows)

    assert chosen["map"] == ways.WAYS["map"][-1]
    assert chosen["as PARSER"] == ways.WAYS["as PARSER"][-1]
    assert chosen["MemAgent"] == {}
