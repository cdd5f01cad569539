"""A reading in one process that is held, edited and let go from another."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
from doubles import chain, numbered
from servers.warm_python import COMMAND_LINE, warm_python

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
    return warm_python(*COMMAND_LINE).run(command, env=environment, check=True)


def begin(bank, start, where, folder):
    """A reading in another process, in its fifth call to the model; its process and its fold."""
    child = start("held_child.py", "read", where, folder, "log")
    return child, wait_for(lambda: [fold for fold in bank.under_way() if fold.step == 4])[0]


def pause(bank, folder, memory):
    """Let a reading end the call that it waits in; its fold when it has paused."""
    (folder / "go on").touch()
    return wait_for(lambda: [fold for fold in bank.under_way(memory) if fold.held])[0]


def result_of(child):
    return json.loads(child.communicate(timeout=2 * PATIENT)[0])


def read_on(memory, history):
    """What comes of a memory with the chunks of these versions, newest first."""
    for version in reversed(history):
        memory = chain(memory, TEXT[slice(*version.span)])
    return memory


@pytest.mark.slow
def test_a_reading_is_held_edited_and_let_go_by_commands(where, start, folder):
    with open_store(where) as store:
        bank = MemoryBank(store)
        child, fold = begin(bank, start, where, folder)
        memory = fold.memory
        bank.hold(memory, "ann", seconds=2 * PATIENT)
        fold = pause(bank, folder, memory)
        listed = memagent(where, "readings").stdout
        edited = memagent(where, "edit", memory).stdout.strip()
        memagent(where, "release", memory)
        out = result_of(child)
        history = bank.history(out["version"])

    assert listed.startswith(f"{memory}\tchunk {fold.step} of about ")
    assert "paused: held by ann" in listed
    assert [version.id for version in history if version.edited] == [edited]
    at = [version.id for version in history].index(edited)
    assert out["answer"] == read_on("By hand.", history[:at])
    assert fold.step < out["usage"]["calls"] - 1


@pytest.mark.slow
def test_what_a_reading_had_read_that_was_killed_while_held_is_read_on_by_another(
    where, start, folder
):
    with open_store(where) as store:
        bank = MemoryBank(store)
        child, fold = begin(bank, start, where, folder)
        hold = bank.hold(fold.memory, "ann", seconds=2 * PATIENT)
        fold = pause(bank, folder, fold.memory)
        child.kill()
        left = bank.under_way(), memagent(where, "readings").stdout
        edit = bank.edit(fold.version, "By hand.", hold=hold)
        again = start("held_child.py", "read", where, folder, "again")
        after = pause(bank, folder, fold.memory)
        bank.release(fold.memory)
        out = result_of(again)
        history = bank.history(out["version"])
        ended = bank.under_way()

    assert left == ([], "")
    assert (after.version, after.step) == (edit.id, fold.step)
    assert out["answer"] == read_on("By hand.", history[: -fold.step - 1])
    assert [version.id for version in history if version.edited] == [edit.id]
    assert (history.gaps, out["warnings"], ended) == ([], [], [])


@pytest.mark.slow
def test_a_follower_waits_in_the_place_of_a_held_reading_that_was_killed(where, start, folder):
    with open_store(where) as store:
        bank = MemoryBank(store)
        child, fold = begin(bank, start, where, folder)
        follower = start("held_child.py", "read", where, folder, "follower")
        step = folder / "follower step"
        wait_for(lambda: step.exists() and step.read_text() == str(fold.step))
        hold = bank.hold(fold.memory, "ann", seconds=2 * PATIENT)
        fold = pause(bank, folder, fold.memory)
        wait_for(lambda: step.read_text() == str(fold.step))
        child.kill()
        after = wait_for(lambda: [one for one in bank.under_way(fold.memory) if one.held])[0]
        edit = bank.edit(after.version, "By hand.", hold=hold)
        bank.release(fold.memory)
        out = result_of(follower)
        history = bank.history(out["version"])
        ended = bank.under_way()

    assert after.holder != fold.holder
    assert (after.version, after.step) == (fold.version, fold.step)
    assert out["answer"] == read_on("By hand.", history[: -fold.step - 1])
    assert out["usage"]["calls"] == len(history) - fold.step  # one edit, and one answer
    assert [version.id for version in history if version.edited] == [edit.id]
    assert (history.gaps, out["warnings"], ended) == ([], [], [])


@pytest.mark.slow
def test_a_reading_goes_on_by_itself_when_the_process_that_holds_it_is_killed(where, start, folder):
    with open_store(where) as store:
        bank = MemoryBank(store)
        child, fold = begin(bank, start, where, folder)
        holder = start("held_child.py", "hold", where, fold.memory, 2)
        wait_for(lambda: bank.held(fold.memory))
        fold = pause(bank, folder, fold.memory)
        holder.kill()
        out = result_of(child)
        history = bank.history(out["version"])
        left = bank.held(fold.memory), bank.under_way()

    assert fold.hold.by == "ann"
    assert out["answer"] == read_on("", history)
    assert left == (None, [])
