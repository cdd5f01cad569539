"""A reading that is killed leaves no gap in a store, and its document is read once."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from contextlib import contextmanager

import pytest
from langgraph.store.memory import InMemoryStore
from servers.tcp_proxy import TCPProxy
from integration.stored_child import MODES, read

from memagent_graph import MemoryBank
from memagent_graph.memory.stores import open_store

TEXT = "\n\n".join(
    f"Pier {number} has a heron named H{number}, which is grey and stands there all day long."
    if number % 3
    else f"Nothing much is to be said of day {number}, when the rain fell and nobody went out."
    for number in range(40)
)
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


def wait_for_calls(process, folder, count, seconds=60.0):
    give_up = time.monotonic() + seconds
    while len(calls(folder)) < count and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.0005)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("kind", [Redis, Sqlite])
@pytest.mark.parametrize("mode", MODES)
def test_after_a_kill_the_store_has_no_gap_and_the_answer_is_that_of_an_undisturbed_reading(
    mode, kind, redis, start, soak, tmp_path
):
    alone = tmp_path / "calls.log"
    expected = read(mode, TEXT, InMemoryStore(), log=alone)
    total = len(calls(tmp_path))
    chosen, midway = random.Random(f"{mode} {kind.__name__}"), 0

    for number in range(2 * soak):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "document.txt").write_text(TEXT)
        store = kind(redis, folder)
        saves = ("resumes", "nothing")[number % 2]

        process = start("stored_child.py", mode, store.where, folder, saves, 0.01, 0)
        at = chosen.randint(1, total)
        wait_for_calls(process, folder, at)
        if chosen.random() < 0.5:  # checkpoints are written, and versions are not
            with store.held_back():
                wait_for_calls(process, folder, at + 1, seconds=1)
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
        with open_store(str(store.where)) as found:
            assert MemoryBank(found).check() == [], (number, saves, at)
    assert midway > 0.4 * soak
