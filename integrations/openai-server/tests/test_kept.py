"""What is kept of tenants: as little as follow-ups need, and no longer than the limits say."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from memory_versions import make_version
from servers.redis_server import RedisServer, wait_until

from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import open_store
from memagent_openai_server.http.limits import Limits
from memagent_openai_server.memories import keeping as keeping_module
from memagent_openai_server.memories import ledger
from memagent_openai_server.memories.keeping import Keeper
from memagent_openai_server.memories.sessions import Sessions
from memagent_openai_server.responses.chain import Chain

DAY = 24 * 3600
PLAIN = {"id": "x", "output": []}


class CountingStore(InMemoryStore):
    """Counts round trips, and items that were read."""

    trips = reads = 0

    async def abatch(self, ops):
        ops = [*ops]
        self.trips += 1
        self.reads += len(ops)
        return await super().abatch(ops)


def contents(store: InMemoryStore) -> dict[tuple[str, ...], dict[str, dict]]:
    """All that the store has."""
    return {
        place: {key: item.value for key, item in items.items()}
        for place, items in store._data.items()
        if items
    }


def size(store: InMemoryStore) -> int:
    return sum(
        len(".".join(place)) + len(key) + len(json.dumps(value))
        for place, items in contents(store).items()
        for key, value in items.items()
    )


@pytest.fixture
def store():
    return CountingStore()


@pytest.fixture
def keeping(serve, upstream, small, store):
    """A server in front of the scripted one, whose store can be looked into."""

    def start(**limits):
        limits = Limits(**limits)
        options = {"config": small, "store": store, "limits": limits}
        return serve("openai:small", base_url=upstream.base_url, **options)

    return start


@pytest.fixture(params=["memory", "sqlite", "redis"])
def any_store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with open_store(str(tmp_path / "memories.sqlite")) as opened:
            yield opened
    else:
        server = RedisServer(tmp_path)
        with RedisStore.from_url(f"redis://127.0.0.1:{server.port}/0") as opened:
            yield opened
        server.kill()


def chat(client, turns: int, length: int = 250):
    """Ids of responses, each of which follows the one before."""
    made = []
    for number in range(turns):
        before = made[-1] if made else None
        text = f"Turn {number}. ".ljust(length, "x")
        made.append(
            client.responses.create(model="small", input=text, previous_response_id=before).id
        )
    return made


def said_to(upstream) -> list[str]:
    return [message["content"] for message in upstream.requests[-1]["messages"]]


def test_sixty_turns_of_half_a_kilobyte_take_less_than_a_hundred(keeping, upstream, store):
    upstream.models = [{"id": "small", "max_model_len": 200_000}]
    upstream.reply = lambda _: "y" * 250
    client = keeping().client()

    made = chat(client, 60)

    assert size(store) < 100_000
    store.trips = 0
    client.responses.create(model="small", input="And?", previous_response_id=made[-1])
    assert len(said_to(upstream)) == 2 * 60 + 1
    assert said_to(upstream)[:2] == ["Turn 0. ".ljust(250, "x"), "y" * 250]
    assert store.trips <= 60 / 8 + 10


def test_a_response_that_others_follow_can_be_deleted(keeping, upstream, store):
    client = keeping().client()
    made = chat(client, 4, 10)

    client.responses.delete(made[1])

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made[1])
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made[1])
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="small", input="x", previous_response_id=made[1])
    for key in (made[0], made[2], made[3]):
        assert client.responses.retrieve(key).id == key
    client.responses.create(model="small", input="And?", previous_response_id=made[3], store=False)
    asked = [text for text in said_to(upstream) if text != "Nothing was found."]
    assert [text[:7] for text in asked] == ["Turn 0.", "Turn 1.", "Turn 2.", "Turn 3.", "And?"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_nothing_is_left_when_all_responses_are_deleted_in_any_order(keeping, store, order):
    client = keeping().client()
    made = chat(client, 4, 10)

    for number in order:
        client.responses.delete(made[number])

    assert contents(store) == {}


def test_a_response_is_deleted_with_what_was_read_for_it(keeping, store, asked):
    client = keeping().client()
    first = client.responses.create(model="small", input=asked())
    second = client.responses.create(
        model="small", input="And who has the key?", previous_response_id=first.id
    )
    assert ("memagent", "versions") in contents(store)

    client.responses.delete(first.id)

    again = client.responses.create(
        model="small", input="Who?", previous_response_id=second.id, store=False
    )
    assert again.memagent["memory"]
    client.responses.delete(second.id)
    left = contents(store)
    heads = left.get(("memagent", "heads"), {})
    assert not [name for name in heads if first.id in name or second.id in name]


@pytest.mark.slow
def test_what_was_read_for_a_deleted_response_leaves_nothing(keeping, store, asked):
    client = keeping().client()
    with client.responses.stream(model="small", input=asked()) as stream:
        made = stream.get_final_response()

    client.responses.delete(made.id)

    assert contents(store) == {}


def test_what_others_have_read_as_well_survives_a_deleted_response(keeping, upstream, asked):
    client = keeping().client()
    made = client.responses.create(model="small", input=asked())
    other = client.responses.create(model="small", input=asked())
    by_chat = client.chat.completions.create(model="small", messages=asked())

    client.responses.delete(made.id)

    before = len(upstream.requests)
    client.responses.create(model="small", input="Who?", previous_response_id=other.id)
    client.chat.completions.create(model="small", messages=asked())
    client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "Who has the key?"}],
        extra_body={"memagent": {"memory": by_chat.memagent["memory"]}},
    )
    assert "Item 3 stands" not in str(upstream.requests[before:])


def test_a_session_survives_a_deleted_response(keeping, upstream, asked):
    server = keeping()
    client = server.client(default_headers={"x-memagent-session": "monday"})
    made = client.responses.create(model="small", input=asked())

    client.responses.delete(made.id)

    before = len(upstream.requests)
    client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Who has the key?"}]
    )
    assert "Item 3 stands" not in str(upstream.requests[before:])
    bank = server.service.sessions(None).bank
    assert bank.history("session monday").gaps == []


def test_what_an_abandoned_reading_left_is_forgotten_in_time(
    keeping, store, upstream, asked, monkeypatch
):
    server = keeping()
    server.client().chat.completions.create(model="small", messages=asked(900))
    server.client().responses.create(model="small", input=asked(700), store=False)
    upstream.script = ["ok"] * 3 + ["hang"]
    with pytest.raises(openai.APITimeoutError):
        server.client(timeout=2).responses.create(model="small", input=asked())
    wait_until(lambda: server.metric("memagent_readings_under_way") == 0, "the reading's end")
    assert contents(store)

    monkeypatch.setattr(keeping_module, "time", lambda: time.time() + 31 * DAY)
    asyncio.run(Keeper(store, ("memagent",), Limits()).sweep())

    assert contents(store) == {}


def test_what_nobody_used_for_long_is_forgotten_and_the_rest_stays(any_store, monkeypatch):
    async def run():
        now = [1e9]
        monkeypatch.setattr(ledger, "time", lambda: now[0])
        monkeypatch.setattr(keeping_module, "time", lambda: now[0])
        tenants = [Sessions(any_store, tenant) for tenant in (None, "ann", "ben")]
        keeper = Keeper(any_store, ("memagent",), Limits(keep_days=30))
        for sessions in tenants:
            await keep(sessions, "resp_old", "Old.")
            await remember(sessions, "session old")
            await remember(sessions, "session used")
            await remember(sessions, "of others", noted=False)
        now[0] += 20 * DAY
        for sessions in tenants:
            await keep(sessions, "resp_new", "New.")
            await sessions.used("session used")
        now[0] += 11 * DAY
        await keeper.sweep()
        for sessions in tenants:
            assert await sessions.chain.get("resp_old") is None
            assert await sessions.chain.get("resp_new") is not None
            names = [name for name, _ in await sessions.bank.alist()]
            assert sorted(names) == ["of others", "session used"]

    asyncio.run(run())


@pytest.mark.slow
def test_a_quota_holds_for_each_tenant_alone_and_the_oldest_go_first(any_store, monkeypatch):
    async def run():
        now = [1e9]
        monkeypatch.setattr(ledger, "time", lambda: now[0])
        limits = Limits(keep_days=0, keep_bytes=20_000)
        keeper = Keeper(any_store, ("memagent",), limits)
        ann, ben = (Sessions(any_store, tenant, keeper=keeper) for tenant in ("ann", "ben"))
        await keep(ben, "resp_ben", "Mine.")
        most = 0
        for number in range(100):
            now[0] += 1
            await keep(ann, f"resp_{number}", "x" * 1000)
            await asyncio.gather(*keeper._tidying.values())
            entries = await ann.ledger.entries()
            most = max(most, sum(entry.size for entry in entries))
        assert 10_000 < most <= 20_000
        kept = [key for key in range(100) if await ann.chain.get(f"resp_{key}")]
        assert kept == [*range(100 - len(kept), 100)]
        assert len(kept) > 10
        assert await ben.chain.get("resp_ben") is not None

    asyncio.run(run())


def test_what_is_written_while_old_things_go_is_looked_at_next(any_store):
    async def run():
        everyone, gate = asyncio.Event(), asyncio.Event()

        class Slow(Keeper):
            calls = 0

            async def wrote(self, sessions, size):
                self.calls += 1
                if self.calls == 40:
                    everyone.set()
                await super().wrote(sessions, size)

            async def tidy(self, sessions):
                await super().tidy(sessions)
                await gate.wait()

        keeper = Slow(any_store, ("memagent",), Limits(keep_days=0, keep_bytes=20_000))
        ann = Sessions(any_store, "ann", keeper=keeper)
        writing = [
            asyncio.create_task(keep(ann, f"resp_{number}", "x" * 1000)) for number in range(40)
        ]
        await everyone.wait()
        gate.set()
        await asyncio.gather(*writing)
        await asyncio.gather(*keeper._tidying.values())
        assert sum(entry.size for entry in await ann.ledger.entries()) <= 20_000

    asyncio.run(run())


def test_a_quota_holds_while_many_write_at_once(keeping, store):
    client = keeping(keep_bytes=60_000).client()

    def one(number):
        made = client.responses.create(model="small", input=f"{number} ".ljust(2000, "x"))
        return made.id

    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(one, range(80))]

    # A tenant is looked at after each 16th of its quota: what came since then is over it.
    wait_until(lambda: size(store) <= 60_000 * 9 / 8, "the oldest to go")
    assert client.responses.retrieve(made[-1]).id == made[-1]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made[0])


def test_a_response_that_is_larger_than_the_quota_is_answered_and_says_that_it_is_not_kept(
    keeping, upstream
):
    upstream.models = [{"id": "small", "max_model_len": 200_000}]
    client = keeping(keep_bytes=10_000).client()
    before = client.responses.create(model="small", input="Hello")

    made = client.responses.create(model="small", input="x" * 20_000)
    *_, last = client.responses.create(model="small", input="x" * 20_000, stream=True)

    for response in (made, last.response):
        assert (response.output_text, response.store) == ("Nothing was found.", False)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)
    assert client.responses.retrieve(before.id).store is True


def test_long_conversations_count_once_and_go_when_they_are_over_the_quota(keeping, store, asked):
    server = keeping(keep_bytes=40_000)
    client = server.client()
    made = client.responses.create(model="small", input=asked(300))
    for _ in range(20):
        made = client.responses.create(
            model="small", input=asked(300), previous_response_id=made.id
        )

    asyncio.run(Keeper(store, ("memagent",), Limits(keep_bytes=40_000)).sweep())

    assert size(store) < 45_000


@pytest.mark.slow
@pytest.mark.parametrize("model", ["openai:small", "extractive"])
def test_what_the_ledger_says_is_about_what_there_is(serve, upstream, small, store, asked, model):
    address = {"base_url": upstream.base_url} if ":" in model else {}
    client = serve(model, config=small, store=store, **address).client()
    name = model.removeprefix("openai:")
    made = client.responses.create(model=name, input=asked())
    client.responses.create(model=name, input=asked(300), previous_response_id=made.id)
    first = client.chat.completions.create(model=name, messages=asked(900))
    client.chat.completions.create(
        model=name,
        messages=asked(400),
        extra_body={"memagent": {"memory": first.memagent["memory"]}},
    )
    client.chat.completions.create(
        model=name, messages=asked(200), extra_headers={"x-memagent-session": "monday"}
    )

    entries = asyncio.run(Sessions(store, None).ledger.entries())

    told = sum(entry.size for entry in entries)
    assert 0.6 < told / size(store) < 1.7


def test_two_who_follow_or_delete_the_same_response_at_once_lose_nothing(keeping, upstream, store):
    client = keeping().client(timeout=120)
    (first,) = chat(client, 1, 10)

    def follow(number):
        made = client.responses.create(
            model="small", input=f"Way {number}.", previous_response_id=first
        )
        return made.id

    with ThreadPoolExecutor(8) as pool:
        deleting = pool.submit(lambda: [*pool.map(follow, range(6))])
        made = deleting.result()
        client.responses.delete(first)
        for key in made:
            client.responses.create(model="small", input="?", previous_response_id=key, store=False)
            assert said_to(upstream)[0].startswith("Turn 0.")
        [*pool.map(client.responses.delete, made)]

    assert contents(store) == {}


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "follow", "remove"]), st.integers(0, 30)), max_size=40
)


@given(ACTIONS)
def test_a_chain_is_what_was_said_whatever_is_deleted_and_leaves_nothing(actions):
    async def run():
        store = InMemoryStore()
        chain = Chain(MemoryBank(store))
        told: dict[str, list[dict]] = {}
        for number, (action, which) in enumerate(actions):
            key = f"r{number}"
            other = [*told][which % len(told)] if told else None
            message = {"role": "user", "content": key}
            if action == "remove" and other is not None:
                await chain.remove(other)
                del told[other]
            elif action != "remove":
                after = other if action == "follow" else None
                whole = [*(told[after] if after else []), message]
                record = {"messages": [message], "memory": None, "response": PLAIN}
                await chain.add(key, record, after=after, whole=whole)
                told[key] = whole
            for kept, messages in told.items():
                record = await chain.get(kept)
                assert record is not None
                assert await chain.conversation(record) == messages
        for key in [*told]:
            await chain.remove(key)
        assert contents(store) == {}

    asyncio.run(run())


def test_a_response_whose_predecessor_is_deleted_meanwhile_keeps_the_whole_conversation():
    async def run():
        chain = Chain(MemoryBank(InMemoryStore()))
        old, new = ({"role": "user", "content": text} for text in ("Old.", "New."))
        record = {"messages": [new], "memory": None, "response": PLAIN}
        await chain.add("new", record, after="deleted", whole=[old, new])
        found = await chain.get("new")
        assert found is not None
        assert await chain.conversation(found) == [old, new]

    asyncio.run(run())


async def keep(sessions, key, text):
    record = {
        "messages": [{"role": "user", "content": text}],
        "memory": None,
        "response": {**PLAIN, "id": key},
    }
    await sessions.keep_response(key, record, after=None, whole=[])


async def remember(sessions, name, *, noted=True):
    version = make_version("Remembered.", question=name)
    await sessions.bank.aadvance(name, version, expected=None)
    if noted:
        await sessions.used(name, read=1000)
