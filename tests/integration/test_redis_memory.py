from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from fixed_readers import ChainReader, numbered
from servers.tcp_proxy import TCPProxy

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.redis import RedisStore

CHUNKED = ReadingConfig(chunk_tokens=40)
TEXT = numbered(190)


def spans(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def read_alone(segments: int = 1) -> tuple[str, int]:
    reader = ChainReader()
    config = CHUNKED.model_copy(update={"segments": segments})
    out = create_memagent(reader, config=config).invoke({"question": "?", "document": TEXT})
    return out["answer"], len(reader.spans)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("segments", "kills"), [(1, 10), (16, 3)])
def test_a_killed_reading_goes_on_in_a_new_process_without_a_checkpointer(
    segments, kills, redis, start, soak, folders
):
    expected, total = read_alone(segments)
    assert total >= 60
    chosen, midway = random.Random("redis"), 0
    for _, folder in folders(kills * soak, TEXT):
        with redis.client() as client:
            client.flushall()

        def read(delay, folder=folder):
            options = json.dumps({"delay": delay, "segments": segments})
            return start("shared_child.py", redis.url, folder, "log", options)

        process, at = read(0.005 * segments), chosen.randint(1, total - 1)
        process.wait_for_lines(folder / "log", at)
        process.kill()
        assert len(spans(folder)) >= at
        midway += len(spans(folder)) < total
        printed, _ = read(0).communicate(timeout=120)

        assert json.loads(printed)["answer"] == expected
        # Of each segment, the call in flight and the write not acknowledged.
        assert len(spans(folder)) <= total + 2 * segments
        assert len(set(spans(folder))) == total
    assert midway > kills * soak / 2  # on a busy machine a kill may come too late


APPENDS = 10
"""Of each process: enough that a store without compare-and-put loses dozens of them."""


@pytest.mark.slow
def test_sixteen_processes_append_to_one_named_memory_and_nothing_is_lost(redis, start):
    processes = [start("redis_child.py", redis.url, one, APPENDS) for one in range(16)]
    for process in processes:
        process.communicate(timeout=600)
    assert [process.returncode for process in processes] == [0] * 16
    with RedisStore.from_url(redis.url) as store:
        lines = MemoryBank(store).get("shared").text.splitlines()

    assert sorted(lines) == sorted(
        f"writer {one} item {two}" for one in range(16) for two in range(APPENDS)
    )


class Killing(ChainReader):
    """Kills Redis at one chunk and has it back a little later."""

    def __init__(self, redis, at):
        super().__init__(delay=0.01)
        self.redis, self.at = redis, at
        self.back: threading.Thread | None = None

    async def update(self, *arguments, **options):
        if len(self.spans) == self.at:
            self.redis.kill()
            self.back = threading.Timer(1.0, self.redis.start)
            self.back.start()
        return await super().update(*arguments, **options)


def test_redis_killed_and_restarted_in_the_middle_costs_nothing(redis):
    expected, total = read_alone()
    reader = Killing(redis, at=20)
    with RedisStore.from_url(redis.url) as store:
        agent = create_memagent(reader, config=CHUNKED, store=store)

        out = agent.invoke({"question": "?", "document": TEXT})
        history = MemoryBank(store).history(out["version"])

    assert (out["answer"], out["warnings"]) == (expected, [])
    assert len(reader.spans) == len(history) == total
    assert [version.step for version in history] == list(range(total, 0, -1))


@pytest.mark.slow
def test_a_chunk_costs_one_round_trip(redis):
    proxy = TCPProxy(redis.port)
    trips = {}
    for lines in (40, 190):
        text = numbered(lines)
        reader = ChainReader(delay=0.001)
        with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0") as store:
            agent = create_memagent(reader, config=CHUNKED, store=store)
            before = proxy.trips
            agent.invoke({"question": f"{lines}?", "document": text})
            trips[len(reader.spans)] = proxy.trips - before
    proxy.close()

    (few, some), (many, more) = sorted(trips.items())
    assert 0 < more - some <= many - few
