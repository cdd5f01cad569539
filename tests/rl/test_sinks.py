from __future__ import annotations

import json
import math
import sys
import threading
from pathlib import Path

import pytest
from rl.rollouts import conversation, records
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph.rl.traces import Feedback, JSONLinesSink, join, load

WRITER = """
import sys
from rl.rollouts import records
from memagent_graph.rl.traces import JSONLinesSink
sink = JSONLinesSink(sys.argv[1])
for number in range(50):
    for record in records(f"{sys.argv[2]}-{number}", prompt_ids=tuple(range(20_000))):
        sink.write(record)
"""


def write_all(sink, found):
    for record in found:
        sink.write(record)
    sink.close()


def test_a_file_gives_back_exactly_what_was_written(tmp_path):
    where = tmp_path / "traces.jsonl"
    logprobs = tuple(-math.pi * 10.0**power for power in range(-20, 2))
    found = [
        *records("ä\ud800\n", reward=1 / 3, logprobs=logprobs, completion_ids=(2**31 - 1,) * 22),
        *records("r2", updates=0, sampling={"temperature": None, "top_k": 20, "top_p": 1.0}),
        Feedback("r2", -1e-300),
    ]
    write_all(JSONLinesSink(where), found)

    assert load(where) == join(found)
    assert not load(where).skipped


def test_a_file_goes_on_where_an_earlier_one_stopped(tmp_path):
    where = tmp_path / "traces.jsonl"

    write_all(JSONLinesSink(where), records("r1"))
    write_all(JSONLinesSink(where), [*records("r2"), Feedback("r1", 1.0)])

    loaded = load(where)
    assert [(one.rollout, one.reward) for one in loaded.rollouts] == [("r1", 1.0), ("r2", None)]


def test_several_places_are_read_as_one(tmp_path):
    half, folder = records("r1"), tmp_path / "more"
    folder.mkdir()
    write_all(JSONLinesSink(tmp_path / "a.jsonl"), half[:2])
    write_all(JSONLinesSink(folder / "b.jsonl"), half[2:3])
    write_all(JSONLinesSink(folder / "c.jsonl"), half[3:])

    assert load([tmp_path / "a.jsonl", folder]) == join(half)


@pytest.mark.slow
def test_several_processes_append_to_one_file_without_tearing_a_line(tmp_path):
    file = tmp_path / "a.jsonl"
    python = warm_python(*COMMAND_LINE)
    writers = [python.start([sys.executable, "-c", WRITER, file, name]) for name in range(3)]

    assert [writer.wait() for writer in writers] == [0, 0, 0]

    loaded = load(file)
    assert len(loaded.rollouts) == 150
    assert not loaded.skipped


def test_a_line_torn_by_a_kill_costs_no_other_record(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(json.dumps(conversation("torn").plain()).encode()[:40])

    write_all(JSONLinesSink(file), records("r1"))

    loaded = load(file)
    assert [one.rollout for one in loaded.rollouts] == ["r1"]
    assert loaded.skipped == {"torn record": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk_is_an_error_not_a_loss():
    sink = JSONLinesSink("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        sink.write(Feedback("r1", 1.0))
    sink.close()


def test_a_file_can_be_written_by_many_threads(tmp_path):
    where = tmp_path / "traces.jsonl"
    sink = JSONLinesSink(where)

    def work(name):
        for number in range(10):
            for record in records(f"{name}-{number}"):
                sink.write(record)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()

    loaded = load(where)
    assert len(loaded.rollouts) == 80
    assert not loaded.skipped
