"""A reading in one process that is edited from another."""

import json
import os
import sys

import pytest
from fixed_readers import chain, numbered
from servers.redis_server import wait_until
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph import MemoryBank
from memagent_graph.memory.stores import open_store

PATIENT = 300
"""Seconds in which the other process comes to where it is waited for."""
TEXT = numbered(180)


def memagent(where, *arguments):
    command = [sys.executable, "-m", "memagent_graph", "memory", *arguments, "--store", where]
    editor = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w').write('By hand.')\""
    environment = {**os.environ, "EDITOR": editor, "VISUAL": editor}
    return warm_python(*COMMAND_LINE).run(command, env=environment, check=True)


def begin(bank, start, where, folder, log="log"):
    """A reading in another process, in its fifth call to the model; its process and its fold."""
    child = start("shared_child.py", where, folder, log, '{"waits": true}')
    look = lambda: [fold for fold in bank.under_way() if fold.step == 4]  # noqa: E731
    return child, wait_until(look, "the fold", PATIENT)[0]


def result_of(child, folder):
    (folder / "go on").touch()
    return json.loads(child.communicate(timeout=2 * PATIENT)[0])


def read_on(memory, history):
    """What comes of a memory with the chunks of these versions, newest first."""
    for version in reversed(history):
        memory = chain(memory, TEXT[slice(*version.span)])
    return memory


@pytest.mark.slow
def test_a_reading_is_edited_by_commands(where, start, folder):
    with open_store(where) as store:
        bank = MemoryBank(store)
        child, fold = begin(bank, start, where, folder)
        edited = memagent(where, "edit", fold.memory).stdout.strip()
        listed = memagent(where, "readings").stdout
        out = result_of(child, folder)
        history = bank.history(out["version"])
        read = bank.get(fold.version).document.end

    assert listed.startswith(f"{fold.memory}\tchunk {fold.step} of about ")
    assert "edited, taken at the next chunk" in listed
    assert [version.id for version in history if version.edited] == [edited]
    at = [version.id for version in history].index(edited)
    assert history[at].document.end == read
    assert out["answer"] == read_on("By hand.", history[:at])


@pytest.mark.slow
def test_a_killed_reading_is_read_on_from_its_edit_by_another(where, start, folder):
    with open_store(where) as store:
        bank = MemoryBank(store)
        leader, fold = begin(bank, start, where, folder)
        leader.kill()
        wait_until(lambda: not bank.under_way(), "its end", PATIENT)
        assert memagent(where, "readings").stdout == ""
        edited = bank.edit(fold.memory, "By hand.", before=fold.version)
        out = result_of(start("shared_child.py", where, folder, "other", "{}"), folder)
        history = bank.history(out["version"])
        ended = bank.under_way()

    assert out["answer"] == read_on("By hand.", history[: -fold.step - 1])
    assert [version.id for version in history if version.edited] == [edited.id]
    assert (history.gaps, out["warnings"], ended) == ([], [], [])
