from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from doubles import ChainReader, numbered
from integration.approving_child import SAID, approve
from servers.warm_python import WarmProcess

from memagent_graph import ConversationMemory, MemoryBank, ReadingConfig, create_memagent
from memagent_graph.conversation.users import Users
from memagent_graph.memory.stores import open_store

CHUNKS = {0.0: 400, 0.01: 120, 0.5: 8}
KILLS = {0.0: 8, 0.01: 8, 0.5: 4}


def spans(folder: Path) -> list[str]:
    log = folder / "updates.log"
    return log.read_text().splitlines() if log.exists() else []


def kill_at(process: WarmProcess, folder: Path, updates: int) -> None:
    """Kill the process once it has begun that many updates."""
    process.wait_for_lines(folder / "updates.log", updates)
    process.kill()
    assert len(spans(folder)) >= updates, "it failed before it could be killed"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.5])
def test_a_killed_run_repeats_at_most_one_chunk_and_ends_with_the_same_answer(
    delay, start, soak, tmp_path
):
    text = numbered(CHUNKS[delay] * 3)
    reader = ChainReader()
    expected = create_memagent(reader, config=ReadingConfig(chunk_tokens=40)).invoke(
        {"question": "?", "document": text}
    )["answer"]
    total = len(reader.spans)
    chosen, midway = random.Random(f"kill {delay}"), 0

    for number in range(KILLS[delay] * soak):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "document.txt").write_text(text)
        kind = ("text", "file")[number % 2]

        kill_at(
            start("reading_child.py", folder, delay, kind, "start"),
            folder,
            chosen.randint(1, total - 1),
        )
        midway += len(spans(folder)) < total
        resumed = start("reading_child.py", folder, delay, kind, "resume")
        printed, _ = resumed.communicate(timeout=120)

        assert json.loads(printed) == expected
        assert len(spans(folder)) <= total + 1
        assert len(set(spans(folder))) == total
    assert midway > KILLS[delay] * soak / 2  # on a busy machine a kill may come too late


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "lines", "segments", "times"), [("segments", 1000, 16, 1), ("questions", 100, 1, 16)]
)
def test_a_killed_run_of_16_folds_repeats_at_most_a_chunk_of_each_and_ends_with_all_answers(
    kind, lines, segments, times, start, soak, tmp_path
):
    text = numbered(lines)
    reader = ChainReader()
    config = ReadingConfig(chunk_tokens=40, segments=segments)
    agent = create_memagent(reader, config=config)
    answer = agent.invoke({"question": "?", "document": text})["answer"]
    expected = answer if times == 1 else [answer] * times
    total = times * len(reader.spans)
    chosen = random.Random(f"kill {kind}")

    for number in range(5 * soak):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "document.txt").write_text(text)

        kill_at(
            start("reading_child.py", folder, 0.01, kind, "start"),
            folder,
            chosen.randint(1, total - 32),
        )
        resumed = start("reading_child.py", folder, 0.01, kind, "resume")
        printed, _ = resumed.communicate(timeout=240)

        assert json.loads(printed) == expected
        assert total <= len(spans(folder)) <= total + 16
        assert {*spans(folder)} == {f"{begin} {end}" for begin, end in reader.spans}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_an_approval_killed_at_any_step_loses_nothing_and_applies_nothing_twice(
    kind, redis, start, tmp_path
):
    states = set()

    for fatal in itertools.count(1):
        with redis.client() as client:
            client.flushall()
        where = redis.url if kind == "redis" else str(tmp_path / f"{fatal}.sqlite")
        printed, _ = start("approving_child.py", where, fatal).communicate(timeout=120)
        if printed:  # it took fewer steps
            break
        with open_store(where) as store:
            memory = ConversationMemory("extractive", store=store, approve=True)
            known = memory.load("ann")
            waiting = "".join(map(str, memory.proposals("ann")))
            assert not any(text in known and text in waiting for text in SAID.values()), fatal
            proposed = sum(text in waiting for text in SAID.values())
            states.add((*(text in known for text in SAID.values()), proposed))

            approve(store)  # what was said before is sent again

            text = memory.load("ann")
            assert [text.count(said) for said in SAID.values()] == [1, 1], fatal
            assert memory.proposals("ann") == [], fatal
            changes = [change.what for change in Users(store).history("ann")[1]]
            assert sorted(changes) == [*["accepted"] * 2, *["proposed"] * 2], fatal
            told = "".join(message.text for message in memory.prompt("ann", about="Husum goats"))
            assert all(said in told for said in SAID.values()), fatal
            assert MemoryBank(store).check() == [], fatal
    assert {(False, False, 0), (False, False, 1), (False, False, 2), (True, True, 0)} <= states
    assert (True, False, 1) in states
