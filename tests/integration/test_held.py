"""A reading in one process that is held, edited and let go from another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from doubles import chain, numbered

from memagent_graph import MemoryBank
from memagent_graph.memory.stores import open_store

PATIENT = 300
"""Seconds in which the other process comes to where it is waited for."""
TEXT = numbered(180)


@pytest.fixture(params=["redis", "sqlite"])
def where(request, tmp_path):
    if request.param == "redis":
        return request.getfixturevalue("redis").url
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "document.txt").write_text(TEXT)
    return tmp_path


def wait_for(look):
    give_up = time.monotonic() + PATIENT
    while not (found := look()):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    return found


def memagent(where, *arguments):
    command = [sys.executable, "-m", "memagent_graph", "memory", *arguments, "--store", where]
    editor = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w').write('By hand.')\""
    environment = {**os.environ, "EDITOR": editor, "VISUAL": editor}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


@pytest.mark.slow
def test_a_reading_is_held_edited_and_let_go_by_commands(where, start, folder):
    child = start("shared_child.py", where, folder, "log", 0.05)
    with open_store(where) as store:
        bank = MemoryBank(store)
        (fold,) = wait_for(bank.under_way)
        memory = fold.memory
        wait_for(lambda: [one for one in bank.under_way(memory) if one.step])
        bank.hold(memory, "ann", seconds=2 * PATIENT)
        (fold,) = wait_for(lambda: [one for one in bank.under_way(memory) if one.held])
        listed = memagent(where, "readings").stdout
        edited = memagent(where, "edit", memory).stdout.strip()
        memagent(where, "release", memory)
        out = json.loads(child.communicate(timeout=2 * PATIENT)[0])
        history = bank.history(out["version"])

    assert listed.startswith(f"{memory}\tchunk {fold.step} of about ")
    assert "paused: held by ann" in listed
    assert [version.id for version in history if version.edited] == [edited]
    expected = "By hand."
    for version in reversed(history[: [one.id for one in history].index(edited)]):
        expected = chain(expected, TEXT[version.start : version.end])
    assert out["answer"] == expected
    assert fold.step < out["usage"]["calls"] - 1
