import asyncio
import gc
from contextlib import suppress

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp

from memagent_graph import MemoryBank
from memagent_graph.memory import lease as module
from memagent_graph.memory.items import NAMESPACE, Records
from memagent_graph.memory.lease import LAPSE, Lease, UnderWay, can_lease

PLACE = (("memagent", "underway"), "key")
FOLD = UnderWay("diary", "?", "digest", "name", "1", 0, 0, 9, None, "2026-01-01")


@pytest.fixture
def store(async_store):
    return async_store


def lease_in(store, **options):
    return Lease(MemoryBank(store), "key", **options)


async def acquire_all(leases):
    return await asyncio.gather(*(lease.acquire(FOLD) for lease in leases))


async def held_and_wanted(store, **clock):
    holder, follower = lease_in(store), lease_in(store, **clock)
    assert await holder.acquire(FOLD)
    assert not await follower.acquire(FOLD)
    return holder, follower


async def stored(store):
    (item,) = await MemoryBank(store).items([GetOp(*PLACE)])
    return None if item is None else item.value


async def put(store, value):
    records = MemoryBank(store)
    return await records.commit([PutOp(*PLACE, value)], {PLACE: await stored(store)})


async def test_one_of_sixteen_who_come_at_once_holds_the_lease(store):
    leases = [lease_in(store) for _ in range(16)]

    results = await acquire_all(leases)

    assert (sum(results), [lease.held for lease in leases]) == (1, results)


async def test_beats_keep_the_lease_and_silence_loses_it(store, clock):
    holder, follower = await held_and_wanted(store, clock=clock)
    for _ in range(3):
        await holder.beat()
        clock.now += LAPSE + 1
        assert not await follower.acquire(FOLD)
    clock.now += LAPSE - 1
    follower.alive()  # by another sign
    clock.now += LAPSE - 0.1
    assert not await follower.acquire(FOLD)
    clock.now += 0.1
    assert await follower.acquire(FOLD)

    assert holder.held
    await holder.beat()
    assert not holder.held  # it has seen that another reads

    await holder.release()
    assert not await holder.acquire(FOLD)
    await follower.beat()
    assert follower.held


async def test_a_lease_whose_run_is_over_is_free_and_can_be_taken_again(store, clock):
    first, second = await held_and_wanted(store, clock=clock)

    await first.release()
    clock.now += LAPSE
    assert not first.held
    assert await stored(store) is None
    assert await first.acquire(FOLD)
    assert not await second.acquire(FOLD)  # not the value that was seen five seconds ago

    await first.release()
    assert await second.acquire(FOLD)
    assert not await first.acquire(FOLD)
    del second  # without a release
    gc.collect()
    assert await first.acquire(FOLD)


async def test_process_ids_of_another_machine_say_nothing(store, clock):
    await put(store, {"holder": "elsewhere-1-2:999999999:ab", "beat": 1})
    follower = lease_in(store, clock=clock)

    assert not await follower.acquire(FOLD)
    clock.now += LAPSE
    assert await follower.acquire(FOLD)


@pytest.mark.parametrize(
    "value", [{}, {"holder": 1, "beat": 1}, {"holder": "x:0:ab", "beat": 1}, {"holder": "x:1:ab"}]
)
async def test_a_malformed_lease_is_free(store, value):
    await put(store, value)
    assert sum(await acquire_all([lease_in(store) for _ in range(4)])) == 1


async def test_the_lease_is_kept_while_a_model_is_waited_for(store, monkeypatch, clock):
    monkeypatch.setattr(module, "BEAT", 0.01)
    holder, follower = await held_and_wanted(store, clock=clock)
    before = asyncio.all_tasks()

    with suppress(ZeroDivisionError):
        async with holder.keep_alive():
            for _ in range(3):
                assert not await follower.acquire(FOLD)
                await beat_after(store, await stored(store))
                clock.now += LAPSE
                assert not await follower.acquire(FOLD)
            raise ZeroDivisionError
    after = await stored(store)
    await asyncio.sleep(0.05)

    assert (await stored(store), asyncio.all_tasks()) == (after, before)


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
