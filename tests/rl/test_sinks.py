from __future__ import annotations

import json
import math
import sys
import threading
from pathlib import Path

import pytest
from rl.rollouts import conversation, records
from servers.redis_server import RedisServer
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph.errors import ConfigurationError, StoreError, TraceError
from memagent_graph.rl.sinks import JSONLinesSink, ListSink, ParquetSink, RedisSink
from memagent_graph.rl.traces import Feedback, join, load

WRITER = """
import sys
from rl.rollouts import records
from memagent_graph.rl.sinks import JSONLinesSink
sink = JSONLinesSink(sys.argv[1])
for number in range(50):
    for record in records(f"{sys.argv[2]}-{number}", prompt_ids=tuple(range(20_000))):
        sink.write(record)
"""


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["jsonl", "parquet", "redis"])
def place(request, tmp_path):
    """A kind of sink and where it writes, which is also where `load` reads."""
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        return RedisSink, f"{server.url}#{tmp_path.name}"
    if request.param == "parquet":
        return ParquetSink, tmp_path / "traces"
    return JSONLinesSink, tmp_path / "traces.jsonl"


def write_all(sink, found):
    for record in found:
        sink.write(record)
    sink.close()


def test_every_sink_gives_back_exactly_what_was_written(place):
    make, where = place
    logprobs = tuple(-math.pi * 10.0**power for power in range(-20, 2))
    found = [
        *records("ä\ud800\n", reward=1 / 3, logprobs=logprobs, completion_ids=(2**31 - 1,) * 22),
        *records("r2", updates=0, sampling={"temperature": None, "top_k": 20, "top_p": 1.0}),
        Feedback("r2", -1e-300),
    ]
    if make is ParquetSink:  # Arrow's strings are UTF-8, which has no lone surrogates
        found = [one for one in found if one.rollout == "r2"]

    write_all(make(where), found)

    assert load(where) == join(found)
    assert not load(where).skipped


def test_every_sink_goes_on_where_an_earlier_one_stopped(place):
    make, where = place

    write_all(make(where), records("r1"))
    write_all(make(where), [*records("r2"), Feedback("r1", 1.0)])

    loaded = load(where)
    assert [(one.rollout, one.reward) for one in loaded.rollouts] == [("r1", 1.0), ("r2", None)]


def test_every_sink_can_be_written_by_many_threads(place):
    make, where = place
    sink = make(where)

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


def test_several_places_are_read_as_one(tmp_path, redis_server):
    half = records("r1")
    url = f"{redis_server.url}#half"
    write_all(JSONLinesSink(tmp_path / "a.jsonl"), half[:2])
    write_all(ParquetSink(tmp_path), half[2:3])
    write_all(RedisSink(url), half[3:])

    assert load([tmp_path, url]) == join(half)


def test_a_list_hands_over_what_came_since_the_last_time():
    sink = ListSink()
    for record in records("r1"):
        sink.write(record)

    assert sink.take() == records("r1")
    sink.write(Feedback("r1", 1.0))
    sink.close()
    assert sink.take() == [Feedback("r1", 1.0)]
    assert sink.take() == []


def test_json_lines_can_be_read_while_they_are_written(tmp_path):
    sink = JSONLinesSink(tmp_path / "a.jsonl")
    for record in records("r1"):
        sink.write(record)

    assert [one.rollout for one in load(tmp_path / "a.jsonl").rollouts] == ["r1"]
    sink.close()


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


def test_parquet_appears_in_whole_files_of_so_many_rows(tmp_path):
    sink = ParquetSink(tmp_path, rows=2)
    for record in records("r1"):  # four
        sink.write(record)
    sink.write(Feedback("r1", 1.0))

    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert load(tmp_path).rollouts[0].reward is None
    sink.close()
    assert load(tmp_path).rollouts[0].reward == 1.0
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_torn_parquet_file_is_skipped_and_counted(tmp_path):
    write_all(ParquetSink(tmp_path), records("r1"))
    whole = next(tmp_path.glob("*.parquet"))
    (tmp_path / "torn.parquet").write_bytes(whole.read_bytes()[:-100])

    loaded = load(tmp_path)

    assert [one.rollout for one in loaded.rollouts] == ["r1"]
    assert loaded.skipped == {"torn file": 1}


def test_parquet_has_a_column_for_each_field(tmp_path):
    from pyarrow import parquet

    write_all(ParquetSink(tmp_path), records("r1"))

    table = parquet.read_table(next(tmp_path.glob("*.parquet")))
    assert table.column("logprobs").to_pylist()[0] == [-0.25, -1.75]
    assert table.column("final").to_pylist() == [False, False, True, None]


def test_a_foreign_entry_in_a_stream_is_counted(redis_server):
    with redis_server.client() as client:
        client.xadd("foreign", {"note": "hello"})
    write_all(RedisSink(f"{redis_server.url}#foreign"), records("r1"))

    loaded = load(f"{redis_server.url}#foreign")

    assert len(loaded.rollouts) == 1
    assert loaded.skipped == {"torn record": 1}


def test_a_stream_longer_than_a_page_is_read_to_its_end(redis_server):
    found = [record for number in range(60) for record in records(f"r{number}")]
    write_all(RedisSink(f"{redis_server.url}#long"), found)

    assert load(f"{redis_server.url}#long") == join(found)


def test_a_key_that_is_no_stream_is_an_error(redis_server):
    with redis_server.client() as client:
        client.set("text", "x")

    with pytest.raises(TraceError, match="'text'"):
        load(f"{redis_server.url}#text")


def test_a_server_that_is_gone_is_an_error_and_a_wrong_address_too(tmp_path):
    server = RedisServer(tmp_path)
    server.kill()

    with pytest.raises(StoreError, match="cannot be reached"):
        RedisSink(server.url).write(Feedback("r1", 1.0))
    with pytest.raises(ConfigurationError, match="scheme"):
        RedisSink("amqp://127.0.0.1/")
