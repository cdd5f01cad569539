import os
import sys
from pathlib import Path

import pytest
from fixed_readers import numbered
from servers.warm_python import COMMAND_LINE, PIPE, WarmProcess, warm_python


@pytest.fixture
def soak():
    """How many times as often a test repeats what it repeats: `make soak` sets it."""
    return int(os.environ.get("MEMAGENT_SOAK", "1"))


@pytest.fixture
def start():
    """Start a script of this folder as a process of its own; none outlives the test."""
    started: list[WarmProcess] = []

    def run(script: str, *arguments: object) -> WarmProcess:
        command = [sys.executable, Path(__file__).with_name(script), *arguments]
        process = warm_python(*COMMAND_LINE).start(command, stdout=PIPE, whole_end=False)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "document.txt").write_text(numbered(180))
    return tmp_path


@pytest.fixture
def folders(tmp_path):
    """Folders with a document, one for each time that something is killed."""

    def make(count, text):
        for number in range(count) if isinstance(count, int) else count:
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "document.txt").write_text(text)
            yield number, folder

    return make
