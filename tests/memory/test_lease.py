from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from memagent_graph import MemoryBank
from memagent_graph.errors import StoreError
from memagent_graph.memory import leases as module
from memagent_graph.memory.items import NAMESPACE, Records
from memagent_graph.memory.leases import LAPSE, Lease, UnderWay, can_lease, note_edit
from memagent_graph.memory.redis import RedisStore

PLACE = (("memagent", "underway"), "key")
FOLD = UnderWay("diary", "?", "digest", "name", "1", 0, 0, 9, None, "2026-01-01")

CHILD = """
import asyncio, sys, time
from langgraph.store.sqlite import SqliteStore
from memagent_graph import MemoryBank
from memagent_graph.memory.leases import Lease, UnderWay
from memagent_graph.memory.redis import RedisStore

where, prefix = sys.argv[1:]
if "://" in where:
    opened = RedisStore.from_url(where, prefix=prefix)
else:
    opened = SqliteStore.from_conn_string(where)
with opened as store:
    lease = Lease(MemoryBank(store).records, "key")
    fold = UnderWay("diary", "?", "digest", "name", "1", 0, 0, 9, None, "2026-01-01")
    print(asyncio.run(lease.acquire(fold)), flush=True)
    time.sleep(600)
"""


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Away(Records):
    """A store that can be taken away."""

    away = False

    async def call(self, operation):
        if self.away:
            raise StoreError("away")
        return await super().call(operation)


@pytest.fixture(params=["memory", "sqlite", "async sqlite", "redis"])
async def store(request, tmp_path):
    file = str(tmp_path / "store.sqlite")
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "redis":
        yield request.getfixturevalue("redis_store")
    elif request.param == "sqlite":
        with SqliteStore.from_conn_string(file) as opened:
            opened.setup()
            yield opened
    else:
        async with AsyncSqliteStore.from_conn_string(file) as opened:
            await opened.setup()
            yield opened


def lease_in(store, **options):
    return Lease(MemoryBank(store).records, "key", **options)


async def stored(store):
    (item,) = await MemoryBank(store).items([GetOp(*PLACE)])
    return None if item is None else item.value


async def put(store, value):
    records = MemoryBank(store).records
    return await records.commit([PutOp(*PLACE, value)], {PLACE: await stored(store)})


async def test_one_of_sixteen_who_come_at_once_holds_the_lease(store):
    leases = [lease_in(store) for _ in range(16)]

    results = await asyncio.gather(*(lease.acquire(FOLD) for lease in leases))

    assert sum(results) == 1
    assert [lease.held for lease in leases] == results


async def test_beats_keep_the_lease_and_silence_loses_it(store):
    clock = Clock()
    holder, follower = lease_in(store), lease_in(store, clock=clock)
    assert await holder.acquire(FOLD)
    assert not await follower.acquire(FOLD)

    for _ in range(3):
        await holder.beat()
        clock.now += LAPSE + 1
        assert not await follower.acquire(FOLD)

    clock.now += LAPSE - 0.1
    assert not await follower.acquire(FOLD)
    clock.now += 0.1
    assert await follower.acquire(FOLD)


async def test_a_holder_notices_at_its_next_beat_that_it_was_taken_over(store):
    clock = Clock()
    holder, follower = lease_in(store), lease_in(store, clock=clock)
    await holder.acquire(FOLD)
    await follower.acquire(FOLD)
    clock.now += LAPSE
    assert await follower.acquire(FOLD)

    assert holder.held
    await holder.beat()
    await holder.release()

    assert not holder.held
    assert not await holder.acquire(FOLD)
    await follower.beat()
    assert follower.held


async def test_another_sign_of_life_begins_the_lapse_anew(store):
    clock = Clock()
    holder, follower = lease_in(store), lease_in(store, clock=clock)
    await holder.acquire(FOLD)
    await follower.acquire(FOLD)

    clock.now += LAPSE - 1
    follower.alive()
    clock.now += LAPSE - 1

    assert not await follower.acquire(FOLD)
    clock.now += 1
    assert await follower.acquire(FOLD)


async def test_a_lease_that_was_released_is_free_and_can_be_taken_again(store):
    clock = Clock()
    first, second = lease_in(store), lease_in(store, clock=clock)
    await first.acquire(FOLD)
    await second.acquire(FOLD)

    await first.release()
    clock.now += LAPSE
    assert not first.held
    assert await stored(store) is None
    assert await first.acquire(FOLD)
    assert not await second.acquire(FOLD)  # not the value that was seen five seconds ago

    await first.release()
    assert await second.acquire(FOLD)


async def test_a_run_that_is_over_frees_its_lease_in_the_same_process(store):
    holder, follower = lease_in(store), lease_in(store)
    await holder.acquire(FOLD)
    assert not await follower.acquire(FOLD)

    del holder
    gc.collect()

    assert await follower.acquire(FOLD)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_the_lease_of_a_killed_process_is_free_at_once(kind, request, tmp_path):
    where, prefix = str(tmp_path / "store.sqlite"), "none"
    opened = SqliteStore.from_conn_string(where)
    if kind == "redis":
        where = request.getfixturevalue("redis_server").url
        prefix = request.getfixturevalue("prefix")
        opened = RedisStore.from_url(where, prefix=prefix)
    with opened as store:
        lease = lease_in(store)
        command = [sys.executable, "-c", CHILD, where, prefix]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: ASYNC220
            try:
                assert child.stdout.readline() == "True\n"
                assert not await lease.acquire(FOLD)
            finally:
                child.kill()

        assert await lease.acquire(FOLD)


async def test_process_ids_of_another_machine_say_nothing(store):
    await put(store, {"holder": "elsewhere-1-2:999999999:ab", "beat": 1})
    clock = Clock()
    follower = lease_in(store, clock=clock)

    assert not await follower.acquire(FOLD)
    clock.now += LAPSE
    assert await follower.acquire(FOLD)


@pytest.mark.parametrize("missing", ["boot_id", "ns"])
async def test_without_proc_only_this_process_is_known(missing, monkeypatch):
    def absent(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(module.Path, "read_text" if missing == "boot_id" else "stat", absent)
    store = InMemoryStore()
    holder, follower = lease_in(store), lease_in(store)

    assert await holder.acquire(FOLD)
    assert not await follower.acquire(FOLD)
    del holder
    gc.collect()
    assert await follower.acquire(FOLD)


async def test_a_fork_does_not_hold_what_its_parent_holds(store, monkeypatch):
    lease = lease_in(store)
    await lease.acquire(FOLD)
    before, parent = await stored(store), os.getpid()

    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: parent + 1)
        lease.held = True
        await lease.beat()
        assert not lease.held
        await lease.release()
        assert not await lease.acquire(FOLD)

    assert await stored(store) == before


async def test_a_put_whose_reply_was_lost_leaves_the_lease_ours(store, monkeypatch):
    lease = lease_in(store)
    real = lease._records.commit

    async def lose_reply(*args, **kwargs):
        await real(*args, **kwargs)
        raise StoreError("no reply")

    with monkeypatch.context() as broken:
        broken.setattr(lease._records, "commit", lose_reply)
        assert not await lease.acquire(FOLD)
    assert await lease.acquire(FOLD)
    with monkeypatch.context() as broken:
        broken.setattr(lease._records, "commit", lose_reply)
        with pytest.raises(StoreError):
            await lease.beat()
    await lease.beat()
    assert lease.held


@pytest.mark.parametrize(
    "value", [{}, {"holder": 1, "beat": 1}, {"holder": "x:0:ab", "beat": 1}, {"holder": "x:1:ab"}]
)
async def test_a_malformed_lease_is_free(store, value):
    await put(store, value)

    leases = [lease_in(store) for _ in range(4)]

    assert sum(await asyncio.gather(*(lease.acquire(FOLD) for lease in leases))) == 1


async def test_the_lease_is_kept_while_a_model_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.01)
    clock = Clock()
    holder, follower = lease_in(store), lease_in(store, clock=clock)
    await holder.acquire(FOLD)
    before = asyncio.all_tasks()

    async with holder.keep_alive():
        for _ in range(3):
            assert not await follower.acquire(FOLD)
            await beat_after(store, await stored(store))
            clock.now += LAPSE
            assert not await follower.acquire(FOLD)
    after = await stored(store)
    await asyncio.sleep(0.05)

    assert await stored(store) == after
    assert asyncio.all_tasks() == before


async def test_a_store_that_is_away_costs_beats_and_nothing_else(monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.01)
    store = InMemoryStore()
    away = Away(store, NAMESPACE)
    lease = Lease(away, "key")
    assert await lease.acquire(FOLD)

    async with lease.keep_alive():
        away.away = True
        await asyncio.sleep(0.05)
        before = await stored(store)
        away.away = False
        await beat_after(store, before)
        away.away = True
    assert lease.held
    await lease.release()

    assert not lease.held
    assert not await lease.acquire(FOLD)
    away.away = False
    assert await lease.acquire(FOLD)


async def test_a_store_that_hangs_delays_the_end_by_one_beat(monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.01)
    lease = lease_in(InMemoryStore())
    await lease.acquire(FOLD)
    hangs = asyncio.Event()

    async def hang(*args, **kwargs):
        hangs.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(lease._records, "commit", hang)
    async with asyncio.timeout(60), lease.keep_alive():
        await hangs.wait()
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_of_the_body_ends_the_beats_and_is_raised(store):
    lease = lease_in(store)
    await lease.acquire(FOLD)
    before = asyncio.all_tasks()

    with pytest.raises(ZeroDivisionError):
        async with lease.keep_alive():
            raise ZeroDivisionError

    assert asyncio.all_tasks() == before


async def test_an_edit_that_is_noted_stays_until_the_holder_takes_it(store):
    lease = lease_in(store)
    await lease.acquire(FOLD)
    await put(store, note_edit(await stored(store), "v1", "e1"))
    await put(store, note_edit(await stored(store), "e1", "e2"))

    await lease.beat()  # sees the edits
    assert lease.held
    await lease.beat()
    waits = await stored(store)
    taken = replace(FOLD, version="v9", edit="e2", taken="2026-01-02")
    await lease.acquire(taken)
    now = await stored(store)

    assert [waits[name] for name in ("version", "of", "edit", "taken")] == ["e2", "v1", "e2", ""]
    assert [now[name] for name in ("version", "of", "edit", "taken")] == [
        "v9", "v1", "e2", "2026-01-02",
    ]  # fmt: skip


async def test_a_write_of_before_an_edit_was_taken_does_not_say_that_it_waits(store):
    lease = lease_in(store)
    await lease.acquire(FOLD)
    await put(store, note_edit(await stored(store), "v1", "e1"))
    await lease.beat()
    await lease.acquire(replace(FOLD, version="e1", edit="e1", taken="2026-01-02"))

    [written], _ = lease.renew(FOLD)  # of a version that was made before, and is written now

    assert (written.value["edit"], written.value["taken"]) == ("e1", "2026-01-02")
    again = note_edit(written.value, "e1", "e2")
    assert (again["edit"], again["taken"]) == ("e2", "")


async def test_stores_with_a_real_compare_and_put_can_lease(store):
    class Foreign(BaseStore):
        batch = abatch = None

    assert can_lease(Records(store, NAMESPACE))
    with pytest.warns(RuntimeWarning, match="compare-and-put"):
        assert not can_lease(Records(Foreign(), NAMESPACE))


async def beat_after(store, before):
    async with asyncio.timeout(60):
        while await stored(store) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
