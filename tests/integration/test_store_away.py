"""A store that hangs: no reading and no conversation waits for it, and nothing is lost for good."""

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest
from fixed_readers import ChainReader, Watched, numbered
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from servers.tcp_proxy import TCPProxy

from memagent_graph import ConversationMemory, MemoryBank, ReadingConfig, create_memagent
from memagent_graph.conversation.node import ConversationNode
from memagent_graph.errors import StoreError
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.store import store_metrics
from memagent_graph.memory.stores import open_store

pytestmark = pytest.mark.usefixtures("impatient")

CHUNKS = 100
TEXT = numbered(CHUNKS * 5)
ASKED = {"question": "?", "document": TEXT}
NAMED = {**ASKED, "memory_name": "shared"}


@pytest.fixture
def proxy(redis):
    proxy = TCPProxy(redis.port, pause=0)
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy):
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0") as opened:
        yield opened
        proxy.resume()


class Interrupting(Watched):
    """Stalls a proxy before one chunk, and lets it go on before another; the first is number 1."""

    def __init__(self, proxy, stall=None, resume=None, **options):
        super().__init__(**options)
        self._proxy, self._stall, self._resume = proxy, stall, resume

    async def update(self, *args, **kwargs):
        number = len(self.spans) + 1
        if number == self._stall:
            self._proxy.stall()
        if number == self._resume:
            self._proxy.resume()
        return await super().update(*args, **kwargs)


def agent_of(reader, store=None, **config):
    return create_memagent(reader, config=ReadingConfig(chunk_tokens=67, **config), store=store)


@pytest.fixture(scope="module")
def expected():
    reader = ChainReader()
    answer = agent_of(reader).invoke(ASKED)["answer"]
    assert len(reader.spans) >= CHUNKS
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "asked", "chunk"),
    [("sync", ASKED, 20), ("async", ASKED, 20), ("sync", NAMED, 20), ("sync", ASKED, 0)],
    ids=["sync", "async", "named", "from the start"],
)
def test_a_store_that_hangs_costs_a_reading_a_warning(
    twin, asked, chunk, proxy, store, expected, caplog
):
    if not chunk:
        proxy.stall()
    reader = Interrupting(proxy, stall=chunk)
    agent = agent_of(reader, store)

    out = agent.invoke(asked) if twin == "sync" else asyncio.run(agent.ainvoke(asked))

    assert (out["answer"], out["stopped"]) == (expected, "end")
    assert len(reader.spans) == len(set(reader.spans))
    assert len(out["warnings"]) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert store_metrics(store).pending == 0


@pytest.mark.slow
@pytest.mark.parametrize("asked", [ASKED, NAMED], ids=["unnamed", "named"])
def test_what_waits_is_written_when_the_store_comes_back(asked, proxy, store, expected):
    reader = Interrupting(proxy, stall=20, resume=60)

    out = agent_of(reader, store).invoke(asked)

    assert out["warnings"] == []
    history = MemoryBank(store).history(asked.get("memory_name") or out["version"])
    assert [version.step for version in history] == [*range(len(reader.spans), 0, -1)]
    assert history.gaps == []
    assert out["answer"] == history[0].text == expected
    assert store_metrics(store)[1:] == (0, 0, "closed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "stall"),
    [(ASKED, 1), (NAMED, 1), (ASKED, 0)],
    ids=["unnamed", "named", "from the start"],
)
def test_a_deadline_holds_when_the_store_hangs(asked, stall, proxy, store):
    if not stall:
        proxy.stall()
    reader = Interrupting(proxy, stall=stall, delay=0.05)

    out = agent_of(reader, store, deadline=3 if stall else 0.5).invoke(asked)

    assert out["stopped"] == "deadline"
    assert len(out["warnings"]) <= 1
    assert len(reader.spans) < CHUNKS


def test_a_named_memory_whose_store_hangs_is_refused_with_what_to_do(proxy, store):
    proxy.stall()
    reader = ChainReader()

    with pytest.raises(StoreError, match=r"'shared' .* when the store is back, or without"):
        agent_of(reader, store).invoke(NAMED)

    assert reader.spans == []


@pytest.mark.slow
async def test_metrics_show_what_waits_and_that_the_store_is_away(proxy, store):
    reader = Interrupting(proxy, stall=5, delay=0.01)
    seen = []

    async for _ in agent_of(reader, store).astream(ASKED, stream_mode="custom"):
        seen.append(store_metrics(store))
        if seen[-1].circuit == "open" and seen[-1].pending > 1:
            proxy.resume()

    assert any(metrics.pending > 1 and metrics.circuit == "open" for metrics in seen)
    assert store_metrics(store)[1:] == (0, 0, "closed")


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_a_reading_that_fails_leaves_nothing_pending(twin, proxy, store):
    def fails(_):
        return ZeroDivisionError() if len(reader.spans) == 10 else None

    reader = Interrupting(proxy, stall=5, fails=fails)
    agent = agent_of(reader, store)
    with pytest.raises(ZeroDivisionError):
        agent.invoke(ASKED) if twin == "sync" else asyncio.run(agent.ainvoke(ASKED))

    assert store_metrics(store).pending == 0


LIKES = [HumanMessage(f"I like number {number}.", id=f"h{number}") for number in range(15)]
TURNS = [message for liked in LIKES for message in (liked, AIMessage("Good."))]


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["observe", "aobserve"])
def test_no_turn_is_lost_or_held_up_by_a_store_that_hangs(asynchronous, proxy, store, caplog):
    memory = ConversationMemory(store=store, window=4, remember_within=1e6)

    def observe(messages):
        if asynchronous:
            return asyncio.run(memory.aobserve(messages, user="ann", thread="monday"))
        return memory.observe(messages, user="ann", thread="monday")

    proxy.stall()
    first = observe(TURNS)
    again = observe(first)
    assert memory.prompt("ann") == []
    with pytest.raises(StoreError):
        memory.load("ann")
    again = observe(again)
    assert [m.content for m in first] == [m.content for m in again] == [m.content for m in TURNS]
    assert "keeps all messages" in caplog.text
    assert "could not be loaded" in caplog.text

    proxy.resume()
    give_up = time.monotonic() + 600
    while len(stays := observe(again)) == len(again):
        assert time.monotonic() < give_up
        time.sleep(0.1)

    assert [m.id for m in stays] == [m.id for m in again[-len(stays) :]]
    assert "I like number 3" in memory.load("ann")
    assert store_metrics(store).circuit == "closed"


def test_a_graph_with_memory_goes_on_without_it_while_the_store_hangs(proxy, store):
    memory = ConversationMemory(store=store, window=4, remember_within=1e6)
    builder = StateGraph(MessagesState).add_node("remember", ConversationNode(memory))
    graph = builder.add_edge(START, "remember").compile()
    said = [*TURNS, HumanMessage("And you?", id="last")]
    proxy.stall()

    ids = {"user_id": "ann", "thread_id": "monday"}
    out = graph.invoke({"messages": said}, {"configurable": ids})

    assert [message.content for message in out["messages"]] == [m.content for m in said]


def forbid_writing(client):
    rights = ["+@read", "+@connection"]
    client.acl_setuser("reader", enabled=True, passwords=["+p"], commands=rights, keys="*")


REFUSALS = {
    "a replica": (lambda c: c.replicaof("127.0.0.1", "1"), "127.0.0.1", 0, "read only"),
    "no such database": (lambda c: None, "127.0.0.1", 99, "out of range"),
    "no rights": (forbid_writing, "reader:p@127.0.0.1", 0, "no permissions"),
    "another's key": (lambda c: c.set("memagent:{memagent}", "x"), "127.0.0.1", 0, "WRONG"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_store_that_refuses_is_waited_for_once_a_reading_and_named(refusal, redis):
    make, host, database, named = REFUSALS[refusal]
    with redis.client() as client:
        make(client)
    reader = ChainReader()

    begun = time.monotonic()
    with RedisStore.from_url(f"redis://{host}:{redis.port}/{database}") as store:
        out = agent_of(reader, store).invoke({"question": "?", "document": numbered(100)})

    assert time.monotonic() - begun < 0.2 * len(reader.spans)
    assert out["coverage"] == 1
    (warning,) = out["warnings"]
    assert "could not be stored" in warning
    assert named in warning


def test_a_locked_file_is_reported_within_the_time_of_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "0.3")
    file = str(tmp_path / "store.sqlite")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match="locked"), open_store(file):
            pass
