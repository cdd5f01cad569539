import itertools
import json
import random
from pathlib import Path

import pytest
from fixed_readers import ChainReader, numbered
from integration.approving_child import SAID, approve

from memagent_graph import ConversationMemory, MemoryBank, ReadingConfig, create_memagent
from memagent_graph.conversation.users import Users
from memagent_graph.memory.stores import open_store

CHUNKS = {0.0: 400, 0.01: 120, 0.5: 8}
KILLS = {0.0: 6, 0.01: 6, 0.5: 2}


def spans(folder: Path) -> list[str]:
    log = folder / "updates.log"
    return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def kill_and_resume(start):
    def run(folder, delay, kind, at):
        """Kill a reading once it has begun so many updates; return the answers of the resumed."""
        process = start("reading_child.py", folder, delay, kind, "start")
        process.wait_for_lines(folder / "updates.log", at)
        process.kill()
        before = len(spans(folder))
        assert before >= at, "it failed before it could be killed"
        resumed = start("reading_child.py", folder, delay, kind, "resume")
        return before, json.loads(resumed.communicate(timeout=240)[0])

    return run


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.5])
def test_a_killed_run_repeats_one_chunk_at_most_and_ends_alike(
    delay, kill_and_resume, folders, soak
):
    text, reader = numbered(CHUNKS[delay] * 3), ChainReader()
    agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40))
    expected = agent.invoke({"question": "?", "document": text})["answer"]
    total = len(reader.spans)
    chosen, midway = random.Random(f"kill {delay}"), 0

    for number, folder in folders(KILLS[delay] * soak, text):
        kind = ("text", "file")[number % 2]
        before, answer = kill_and_resume(folder, delay, kind, chosen.randint(1, total - 1))

        midway += before < total
        assert answer == expected
        assert len(spans(folder)) <= total + 1
        assert len(set(spans(folder))) == total
    assert midway >= KILLS[delay] * soak / 2  # on a busy machine a kill may come too late


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_an_approval_killed_at_any_step_applies_each_change_once(kind, redis, start, tmp_path):
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
