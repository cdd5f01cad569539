from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doubles import ChainReader, numbered

from memagent_graph import ReadingConfig, create_memagent

CHILD = Path(__file__).with_name("reading_child.py")
CHUNKS = {0.0: 400, 0.01: 120, 0.5: 8}
KILLS = {0.0: 8, 0.01: 8, 0.5: 4}


def start(folder: Path, delay: float, kind: str, mode: str) -> subprocess.Popen[bytes]:
    paths = [str(CHILD.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(CHILD), str(folder), str(delay), kind, mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def spans(folder: Path) -> list[str]:
    log = folder / "updates.log"
    return log.read_text().splitlines() if log.exists() else []


def kill_at(process: subprocess.Popen[bytes], folder: Path, updates: int) -> None:
    """Kill the process once it has begun that many updates."""
    give_up = time.monotonic() + 60
    while len(spans(folder)) < updates:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < give_up
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.5])
def test_a_killed_run_repeats_at_most_one_chunk_and_ends_with_the_same_answer(delay, tmp_path):
    text = numbered(CHUNKS[delay] * 3)
    reader = ChainReader()
    expected = create_memagent(reader, config=ReadingConfig(chunk_tokens=40)).invoke(
        {"question": "?", "document": text}
    )["answer"]
    total = len(reader.spans)
    chosen = random.Random(f"kill {delay}")

    for number in range(KILLS[delay]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "document.txt").write_text(text)
        kind = ("text", "file")[number % 2]

        kill_at(start(folder, delay, kind, "start"), folder, chosen.randint(1, total - 1))
        before = len(spans(folder))
        resumed = start(folder, delay, kind, "resume")
        printed, _ = resumed.communicate(timeout=120)

        assert json.loads(printed) == expected
        assert before < total
        assert len(spans(folder)) <= total + 1
        assert len(set(spans(folder))) == total
