import threading

import pytest
from fixed_readers import ChainReader, numbered
from servers.tcp_proxy import TCPProxy

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.redis import RedisStore

CHUNKED = ReadingConfig(chunk_tokens=40)
TEXT = numbered(190)
APPENDS = 6
"""Of each process: enough that a store without compare-and-put loses dozens of them."""


@pytest.mark.slow
def test_sixteen_processes_append_to_one_named_memory_and_nothing_is_lost(redis, start):
    processes = [start("redis_child.py", redis.url, one, APPENDS) for one in range(16)]
    for process in processes:
        process.communicate(timeout=600)
    assert [process.returncode for process in processes] == [0] * 16
    with RedisStore.from_url(redis.url) as store:
        lines = MemoryBank(store).get("shared").text.splitlines()

    expected = [f"writer {one} item {two}" for one in range(16) for two in range(APPENDS)]
    assert sorted(lines) == sorted(expected)


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
    alone = ChainReader()
    expected = create_memagent(alone, config=CHUNKED).invoke({"question": "?", "document": TEXT})
    total, reader = len(alone.spans), Killing(redis, at=20)
    with RedisStore.from_url(redis.url) as store:
        agent = create_memagent(reader, config=CHUNKED, store=store)

        out = agent.invoke({"question": "?", "document": TEXT})
        history = MemoryBank(store).history(out["version"])

    assert (out["answer"], out["warnings"]) == (expected["answer"], [])
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
