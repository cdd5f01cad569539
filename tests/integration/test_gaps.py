"""A reading that is killed leaves no gap in a store, and its document is read once."""

import itertools
import json
import random
import sqlite3
import time
from contextlib import contextmanager

import pytest
from fixed_readers import Broken, ChainReader
from integration.stored_child import MODES, read
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from servers.tcp_proxy import TCPProxy

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ModelError
from memagent_graph.graph.lineage import versions_in
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import open_store

TEXT = "\n\n".join(
    f"Pier {number} has a heron named H{number}, which is grey and stands there all day long."
    if number % 3
    else f"Nothing much is to be said of day {number}, when the rain fell and nobody went out."
    for number in range(40)
)
FOLDS = {"segments": 4, "questions": 3}
"""Folds of a reading that run at once, if there are several."""
OLDER = "Pier 99 has a heron as well. " * 6


class Redis:
    """A store behind a connection that can stand still."""

    def __init__(self, server, _folder):
        self.url = server.url
        self.proxy = TCPProxy(server.port)
        self.where = f"redis://127.0.0.1:{self.proxy.port}/0"
        with server.client() as client:
            client.flushall()

    @contextmanager
    def held_back(self):
        self.proxy.stall()
        yield

    def cut(self):
        self.proxy.close()
        self.where = self.url


class Sqlite:
    """A store in a file that can be locked."""

    def __init__(self, _server, folder):
        self.where = folder / "store.sqlite"

    @contextmanager
    def held_back(self):
        with sqlite3.connect(self.where) as locked:
            locked.execute("BEGIN IMMEDIATE")
            yield
            locked.rollback()
        locked.close()

    def cut(self):
        pass


def calls(folder):
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


class FailingReader(ChainReader):
    async def respond(self, question, memory, *, config=None):
        self.memory = memory.text
        raise ModelError("killed")


def ask(reader, store, text):
    agent = create_memagent(reader, config=ReadingConfig(chunk_tokens=40), store=store)
    return agent.invoke({"question": "?", "document": text, "memory_name": "diary"})


def lose(store, *keys):
    for key in keys:
        store.delete(("memagent", "versions"), key)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("kind", [Redis, Sqlite])
@pytest.mark.parametrize("mode", MODES)
def test_after_a_kill_the_store_has_no_gap_and_the_answer_is_that_of_an_undisturbed_reading(
    mode, kind, redis, start, soak, tmp_path, folders
):
    alone = tmp_path / "calls.log"
    expected = read(mode, TEXT, InMemoryStore(), log=alone)
    total = len(calls(tmp_path))
    chosen, midway = random.Random(f"{mode} {kind.__name__}"), 0

    for number, folder in folders(2 * soak, TEXT):
        store = kind(redis, folder)
        saves = ("resumes", "nothing")[number % 2]

        process = start("stored_child.py", mode, store.where, folder, saves, 0.01, 0)
        at = chosen.randint(1, total)
        process.wait_for_lines(folder / "calls.log", at)
        held_back = chosen.random() < 0.5
        if held_back:  # checkpoints are written, and versions are not
            with store.held_back():
                process.wait_for_lines(folder / "calls.log", at + 1, seconds=1)
                time.sleep(chosen.uniform(0, 0.1))
                process.kill()
        else:
            time.sleep(chosen.uniform(0, 0.02))
            process.kill()
        store.cut()
        midway += len(calls(folder)) < total
        resumed = start("stored_child.py", mode, store.where, folder, saves, 0, 0)
        printed, _ = resumed.communicate(timeout=120)

        assert json.loads(printed)[0] == expected, (number, saves, at)
        if not held_back:  # of each fold, the call in flight and the write not acknowledged
            assert len(calls(folder)) <= total + 2 * FOLDS.get(mode, 1), (number, saves, at)
        with open_store(str(store.where)) as found:
            assert MemoryBank(found).check() == [], (number, saves, at)
    assert midway > 0.4 * soak


@pytest.mark.slow
@pytest.mark.parametrize("saves", ["nothing", "starts anew", "resumes"])
def test_a_named_reading_killed_at_any_store_call_reads_once(saves, redis, start, folders):
    text = TEXT[:600]
    store = InMemoryStore()
    read("named", OLDER, store)
    expected = read("named", text, store)
    head = MemoryBank(store).head("diary")
    moved = 0

    for fatal, folder in folders(itertools.count(1), text):
        with redis.client() as client:
            client.flushall()
        with RedisStore.from_url(redis.url) as found:
            read("named", OLDER, found)
            older = MemoryBank(found).head("diary")
        killed = start("stored_child.py", "named", redis.url, folder, saves, 0, fatal)
        printed, _ = killed.communicate(timeout=120)
        if printed:  # it made fewer calls
            break
        with RedisStore.from_url(redis.url) as found:
            moved += MemoryBank(found).head("diary").id != older.id
        again = start("stored_child.py", "named", redis.url, folder, saves, 0, 0)
        printed, _ = again.communicate(timeout=120)

        assert json.loads(printed)[0] == expected, fatal
        with RedisStore.from_url(redis.url) as found:
            bank = MemoryBank(found)
            assert bank.head("diary").id == head.id, fatal
            assert bank.check() == [], fatal
    assert moved >= 3
    assert fatal > moved + 3


def test_a_killed_reading_that_another_followed_is_answered_from_its_own_memory():
    store, killed = InMemoryStore(), FailingReader()
    with pytest.raises(ModelError):
        ask(killed, store, "Monday was dry. " * 20)
    ask(ChainReader(), store, "Tuesday was wet. " * 20)
    head = MemoryBank(store).head("diary")

    reader = ChainReader()
    out = ask(reader, store, "Monday was dry. " * 20)

    assert (out["memory"], reader.spans) == (killed.memory, [])
    assert MemoryBank(store).head("diary") == head


def test_a_document_that_is_read_again_after_another_goes_into_the_memory_again():
    store, reader = InMemoryStore(), ChainReader()
    for text in ("The door is open.", "The door is shut."):
        ask(ChainReader(), store, text)

    for _ in range(2):
        ask(reader, store, "The door is open.")

    assert len(reader.spans) == 1
    assert len(MemoryBank(store).history("diary")) == 3


def test_a_memory_that_was_forgotten_or_moved_back_reads_its_document_again():
    store = InMemoryStore()
    bank, reader = MemoryBank(store), ChainReader()
    first = ask(ChainReader(), store, "Older.")["version"]
    second = ask(ChainReader(), store, "Newer.")["version"]

    bank.move_head("diary", first, expected=second)
    ask(ChainReader(), store, "Another.")
    ask(reader, store, "Newer.")
    bank.forget("diary")
    ask(reader, store, "Newer.")

    assert len(reader.spans) == 2
    assert len(bank.history("diary")) == 1


@pytest.mark.parametrize("mode", ["plain", "segments", "skim"])
def test_a_repeated_reading_is_answered_though_a_version_is_gone(mode, tmp_path):
    store, log = InMemoryStore(), tmp_path / "calls.log"
    expected = read(mode, TEXT, store)
    bank = MemoryBank(store)
    ((name, _),) = bank.list()
    lose(store, bank.history(name)[3].id)

    assert read(mode, TEXT, store, log=log) == expected

    assert calls(tmp_path) == ["answer"]
    assert [finding.kind for finding in bank.check()] == ["gap"]


class Recovering(ChainReader):
    """Its store is unreachable from some chunk on, until the merge."""

    def __init__(self, store, recovers):
        super().__init__(delay=0.01)
        self.store, self.recovers = store, recovers

    async def update(self, step, *, config=None):
        self.store.away = self.store.away or len(self.spans) == 6
        return await super().update(step, config=config)

    async def merge(self, question, memories, *, config=None):
        self.store.away = self.store.away and not self.recovers
        return await super().merge(question, memories, config=config)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_merge_is_stored_after_what_it_was_made_from_or_a_warning_says_why(monkeypatch, recovers):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "0.5")
    store = Broken()
    reader = Recovering(store, recovers)
    config = ReadingConfig(chunk_tokens=40, segments=4)
    agent = create_memagent(reader, config=config, store=store)

    out = agent.invoke({"question": "?", "document": TEXT})

    if recovers:
        assert out["warnings"] == []
        bank = MemoryBank(store)
        assert bank.history(out["version"]).gaps == bank.check() == []
    else:
        (warning,) = out["warnings"]
        assert "could not be stored: " in warning
        assert "None" not in warning


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RedisStore, SqliteStore])
@pytest.mark.parametrize("mode", ["segments", "questions"])
def test_check_fills_gaps_from_the_checkpoints_of_a_reading(mode, kind, redis, tmp_path):
    with redis.client() as client:
        client.flushall()
    where = redis.url if kind is RedisStore else str(tmp_path / "store.sqlite")
    saved = str(tmp_path / "checkpoints.sqlite")
    with open_store(where) as store, SqliteSaver.from_conn_string(saved) as saver:
        read(mode, TEXT, store, saver)
        bank = MemoryBank(store)
        before = contents(bank)
        lost = random.Random(mode).sample(sorted(before), len(before) // 3)
        lose(store, *lost)
        assert {finding.kind for finding in bank.check()} >= {"gap"}

    with open_store(where) as store, SqliteSaver.from_conn_string(saved) as saver:
        found = MemoryBank(store).check(repair=True, spare=versions_in(saver))

    restored = [finding for finding in found if "restored from a checkpoint" in finding.text]
    assert len(restored) == len(lost)
    with open_store(where) as store:
        assert MemoryBank(store).check() == []
        assert contents(MemoryBank(store)) == before


def contents(bank):
    """The versions of all readings by id, without the time of a repeated write."""
    return {version.id: version for name, _ in bank.list() for version in bank.history(name)}


def test_check_fills_no_gap_with_what_was_forgotten_or_thinned_out():
    store, saver = InMemoryStore(), InMemorySaver()
    read("plain", TEXT, store, saver)
    bank = MemoryBank(store)
    spare = versions_in(saver)
    ((name, head),) = bank.list()
    bank.thin(name, 2)

    bank.check(repair=True, spare=spare)
    assert len(bank.history(name)) == 2

    lose(store, head.id)
    bank.forget_source(head.document.digest)
    bank.check(repair=True, spare=spare)
    assert bank.list() == []


def test_check_restores_the_head_of_a_memory_from_a_checkpoint():
    store, saver = InMemoryStore(), InMemorySaver()
    read("named", TEXT, store, saver)
    bank = MemoryBank(store)
    head = bank.head("diary")
    lose(store, head.id)

    (finding,) = bank.check(repair=True, spare=versions_in(saver))

    assert finding == ("dangling", "diary", f"{head.id} was gone: restored from a checkpoint")
    assert bank.head("diary") == head
    assert bank.check() == []
