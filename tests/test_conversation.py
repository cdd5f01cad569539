from __future__ import annotations

import asyncio
import logging
import random
import re
from itertools import pairwise

import pytest
from conversations import is_valid, turns
from doubles import ScriptedReader
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from pydantic import BaseModel
from servers.redis_server import RedisServer

from memagent_graph import (
    ConversationMemory,
    ConversationNode,
    ConversationState,
    ReadingConfig,
    RedisStore,
)
from memagent_graph.conversation.user_memory import AnonymousUser, UserMemory
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Update

WHO = {"user": "ann", "thread": "monday"}
ROOMY = ReadingConfig(memory_tokens=10**6, chunk_tokens=10**5)
AT_WINDOW = {"remember_within": 1e6, "config": ROOMY}


class Keeper(ScriptedReader):
    """Its memory is all that it read. Fails when told to; can wait, so that others overtake."""

    def __init__(self, fails=lambda: False, wait=lambda: 0.0):
        super().__init__()
        self.fails = fails
        self.wait = wait

    async def update(self, step, *, config=None):
        await asyncio.sleep(self.wait())
        if self.fails():
            raise ModelError("The model is away.")
        self.calls.append(step.chunk.text)
        return Update(Memory(step.memory.text + step.chunk.text))


def chat(count, start=0):
    """Human and AI messages in turn; a human message comes last."""
    kinds = (HumanMessage, AIMessage)
    return [kinds[i % 2](f"saying {i}.", id=f"id-{i}") for i in range(start, start + 2 * count - 1)]


def said(memory):
    return [int(number) for number in re.findall(r"saying (\d+)\.", memory)]


def test_what_lies_beyond_the_window_is_folded_and_the_rest_stays():
    memory = ConversationMemory(Keeper(), window=6, **AT_WINDOW)

    stays = memory.observe(chat(5), **WHO)

    assert [message.text for message in stays] == ["saying 6.", "saying 7.", "saying 8."]
    assert said(memory.load("ann")) == [*range(9)]


def test_what_waits_leaves_where_the_rest_has_no_room_and_is_found_word_for_word():
    config = ReadingConfig(chunk_tokens=500, memory_tokens=400)
    reader = Keeper()
    memory = ConversationMemory(reader, window=20, remember_within=1e6, config=config)
    long = [HumanMessage(f"My boat {n} is blue. " + "So it is. " * 60, id=f"{n}") for n in range(9)]

    stays = memory.observe(long, **WHO)

    assert stays[-1].id == "8"
    assert len(stays) < 5
    assert "My boat 0 is blue." in memory.prompt("ann", about="boat 0")[0].text
    assert memory.flush("ann") == 0
    assert any("My boat 0" in text for text in reader.calls)


def test_messages_that_cannot_be_counted_stay(monkeypatch):
    monkeypatch.setattr("memagent_graph.conversation.session.count_tokens", lambda message: 1 / 0)

    assert len(ConversationMemory(Keeper(), window=2).observe(chat(5), **WHO)) == 9


def test_a_conversation_within_the_window_is_left_alone():
    memory = ConversationMemory(reader := Keeper(), **AT_WINDOW)

    assert [m.text for m in memory.observe(chat(10), **WHO)] == [m.text for m in chat(10)]
    assert reader.calls == []
    assert "saying 3." in memory.prompt("ann", about="saying")[0].text


def test_messages_of_other_frameworks_are_taken_as_they_are():
    memory = ConversationMemory(window=2, remember_within=1e6)
    dicts = [
        {"role": "user", "content": "My sister Edda breeds goats in Husum."},
        {"role": "assistant", "content": "Nice."},
        {"role": "user", "content": "And you?"},
    ]

    memory.observe(dicts, **WHO)
    memory.flush("ann")

    assert [message.text for message in memory.observe(dicts, **WHO)] == ["And you?"]
    assert "Edda breeds goats" in memory.load("ann")


def test_the_memory_survives_a_restart_and_crosses_threads(tmp_path):
    path = str(tmp_path / "memory.sqlite")
    with SqliteStore.from_conn_string(path) as store:
        ConversationMemory(store=store).save(
            [("human", "I keep two llamas.")], user="ann", thread="monday"
        )

    with SqliteStore.from_conn_string(path) as store:
        (told,) = ConversationMemory(store=store).prompt("ann")

    assert isinstance(told, SystemMessage)
    assert "I keep two llamas." in told.text


def test_a_whole_conversation_can_be_saved_and_nothing_is_folded_twice():
    memory = ConversationMemory(Keeper(), window=6, **AT_WINDOW)

    memory.save(chat(2), **WHO)
    stays = memory.observe(chat(5), **WHO)
    memory.save(stays, **WHO)
    memory.save(stays, **WHO)

    assert said(memory.load("ann")) == [*range(9)]


def test_a_long_conversation_that_is_saved_again_and_again_is_folded_once():
    memory = ConversationMemory(Keeper(), config=ROOMY)

    for count in (150, 151, 152, 170):
        memory.save(chat(count), **WHO)

    assert said(memory.load("ann")) == [*range(339)]


@pytest.mark.slow
async def test_what_folding_costs_does_not_grow_with_what_was_folded():
    """Operations, what is written and what the model reads, of as many turns later on."""

    class Counting(InMemoryStore):
        work = 0

        def batch(self, ops):
            ops = [*ops]
            found = super().batch(ops)
            for op, result in zip(ops, found, strict=True):
                lines = isinstance(op, SearchOp) and op.namespace_prefix[-1] == "changes"
                if not lines:  # of which the oldest go now and then
                    self.work += 1000 + len(str(op)) + len(str(result))
            return found

        async def abatch(self, ops):
            return self.batch(ops)

    class Brief(Keeper):
        async def update(self, step, *, config=None):
            self.calls.append(step.chunk.text)
            return Update(Memory(step.chunk.text[-50:]))

    store, reader = Counting(), Brief()
    # Few enough that pages of them fill: each turn writes the last page again.
    memory = ConversationMemory(reader, store=store, episode_tokens=1_000)
    work, read = [0], [0]
    for part in range(4):
        for turn in range(1000 + 60 * part, 1060 + 60 * part):
            question = HumanMessage(f"saying {turn}.", id=f"{turn}")
            messages = [question, AIMessage("I see.", id=f"-{turn}")]
            await memory.asave(messages, user="ann", thread="monday")
        work.append(store.work)
        read.append(sum(map(len, reader.calls)))

    costs = [after - before for before, after in pairwise(work)]
    assert costs[3] < 1.01 * costs[2]  # up to 100 ids of messages and 10 versions are kept
    assert read[4] - read[3] == read[3] - read[2]
    assert len(reader.calls) == 240


def test_users_do_not_see_each_other():
    memory = ConversationMemory(Keeper(), config=ROOMY)

    memory.save(chat(1), user="ann", thread="t")
    memory.save(chat(2), user="ann.b", thread="t")

    assert said(memory.load("ann")) == [0]
    assert said(memory.load("ann.b")) == [0, 1, 2]
    assert memory.load("an") == ""
    with pytest.raises(ConfigurationError, match="user"):
        memory.load("")


def test_a_failed_fold_leaves_all_as_it_was_and_is_tried_again(caplog):
    failing = True
    memory = ConversationMemory(Keeper(fails=lambda: failing), window=4, **AT_WINDOW)

    with caplog.at_level(logging.WARNING):
        stays = memory.observe(chat(4), **WHO)

        assert memory.load("ann") == ""

    assert "saying 0." in memory.prompt("ann", about="saying 0")[0].text
    assert "is tried again" in caplog.text
    failing = False
    memory.observe(stays, **WHO)
    assert said(memory.load("ann")) == [*range(7)]


def test_saving_says_what_failed():
    memory = ConversationMemory(Keeper(fails=lambda: True), config=ROOMY)

    with pytest.raises(ModelError, match="away"):
        memory.save(chat(1), **WHO)


def test_a_turn_cut_off_after_the_head_moved_does_not_fold_again():
    """The memory is written before the state: the messages are still there at the next try."""
    memory = ConversationMemory(Keeper(), window=4, **AT_WINDOW)
    memory.observe(chat(4), **WHO)  # and its result is lost
    memory.flush("ann")

    memory.save(chat(1, start=100), user="ann", thread="other")
    memory.observe(chat(5), **WHO)
    memory.flush("ann")
    again = memory.observe(chat(5), **WHO)

    assert [message.text for message in again] == ["saying 8."]
    assert said(memory.load("ann")) == [*range(7), 100, 7, 8]


async def test_two_turns_of_one_user_at_once_lose_nothing():
    store = InMemoryStore()
    memory = ConversationMemory(Keeper(wait=lambda: random.uniform(0, 0.01)), store=store)

    await asyncio.gather(
        *(
            memory.asave(chat(1, start=number), user="ann", thread=f"thread {number}")
            for number in range(12)
        )
    )

    assert sorted(said(await memory.aload("ann"))) == [*range(12)]


async def test_the_same_turn_run_twice_at_once_is_folded_once():
    memory = ConversationMemory(Keeper(wait=lambda: 0.01), window=4, **AT_WINDOW)

    await asyncio.gather(*(memory.asave(chat(4), **WHO) for _ in range(5)))

    assert said(await memory.aload("ann")) == [*range(7)]


async def test_versions_that_lost_their_race_are_not_left_behind():
    store = InMemoryStore()
    memory = ConversationMemory(Keeper(wait=lambda: 0.01), store=store)

    await asyncio.gather(
        *(memory.asave(chat(1, start=n), user="ann", thread=f"thread {n}") for n in range(5))
    )

    bank = UserMemory(store, ("memagent",), "ann").bank
    stored = store.search((*bank.namespace, "versions"), limit=100)
    assert {item.key for item in stored} == {v.id for v in await bank.ahistory("memory")}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def any_store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with SqliteStore.from_conn_string(str(tmp_path / "s.sqlite")) as store:
            yield store
    else:
        server = RedisServer(tmp_path)
        with RedisStore.from_url(server.url) as store:
            store.server = server
            yield store
        server.kill()


def test_forgetting_a_user_leaves_nothing_of_them_in_the_store(any_store):
    memory = ConversationMemory(store=any_store, window=2)
    for user in ("ann", "annabel", "Ann"):
        memory.save([("human", f"I am {user} and keep llamas.")], user=user, thread="x-thread")

    assert memory.forget("ann").items > 0

    assert memory.load("ann") == ""
    assert memory.forget("ann").items == 0
    assert "annabel" in memory.load("annabel")
    assert "Ann and" in memory.load("Ann")
    assert not any("user-ann" in item.namespace for item in any_store.search((), limit=1000))
    if isinstance(any_store, RedisStore):
        with any_store.server.client() as client:
            # A receipt, which names the tenant, is gone after a minute.
            keys = [key for key in client.scan_iter("*") if b"#receipt/" not in key]
            sets = [key for key in keys if client.type(key) == b"zset"]
            names = b"".join(
                keys + [member for key in sets for member in client.zrange(key, 0, -1)]
            )
        assert b"{user-annabel}/" in names
        assert b"{user-ann}" not in names


def test_facts_carry_the_day_on_which_they_were_told_the_newest_last():
    memory = ConversationMemory()

    def tell(text, day):
        message = HumanMessage(text, additional_kwargs={"told_at": day})
        return memory.save([message], user="ann", thread=day)

    tell("I live in Paris with my cat Minou.", "2026-03-05")
    tell("I moved to Berlin last week.", "2026-10-01")

    assert memory.load("ann") == (
        "5 Mar 2026\nI live in Paris with my cat Minou.\n1 Oct\nI moved to Berlin last week."
    )


def test_a_message_longer_than_a_chunk_is_read_chunk_by_chunk():
    config = ReadingConfig(chunk_tokens=200, memory_tokens=300)
    memory = ConversationMemory(config=config)
    filler = "The rest is small talk, as always. " * 100

    memory.save([("human", f"{filler}My brother Ugo builds organs.")], **WHO)

    assert "My brother Ugo builds organs." in memory.load("ann")


@pytest.mark.slow
@settings(max_examples=60)
@given(turns(), st.integers(1, 9), st.integers(200, 2000), st.integers(0, 2**32))
def test_whatever_fails_each_message_is_folded_once_or_still_there(
    conversation, window, chunk_tokens, seed
):
    chance = random.Random(seed)  # Hypothesis has one for its own thread alone
    reader = Keeper(fails=lambda: chance.random() < 0.3)
    config = ReadingConfig(memory_tokens=10**6, chunk_tokens=chunk_tokens)
    memory = ConversationMemory(reader, window=window, remember_within=1e6, config=config)
    logging.disable()
    messages = []
    for turn in conversation:
        for message in turn:
            messages = add_messages(messages, [message])
            asks = not isinstance(message, AIMessage) and is_valid(messages)
            if asks:  # this is when the model is called
                stays = memory.observe(messages, **WHO)
                assert is_valid(stays)
                assert stays[-1].id == messages[-1].id
                if chance.random() < 0.8:  # else the turn is cut off before the state is written
                    messages = stays
    logging.disable(logging.NOTSET)

    def numbers(messages):
        texts = [message.text for message in messages if not isinstance(message, SystemMessage)]
        return re.findall(r"(?:human|reply|result) m\d+", " ".join(texts))

    reader.fails = lambda: False
    everything = [message for turn in conversation for message in turn]
    told = numbers([HumanMessage(memory.load("ann"))])
    left, said_ = numbers(messages), numbers(everything)
    assert sorted({*told, *left}) == sorted({*said_})  # none is dropped unfolded
    assert all(told.count(number) <= said_.count(number) for number in told)  # none is folded twice
    assert [m for m in everything if isinstance(m, SystemMessage)] == [
        m for m in messages if isinstance(m, SystemMessage)
    ]


def remembering_graph(memory, saver=None, store=None, **options):
    def answer(state):
        assert is_valid(state["messages"])
        return {"messages": [AIMessage(f"heard {len(state['messages'])}")]}

    builder = StateGraph(ConversationState)
    builder.add_node("remember", ConversationNode(memory, **options))
    builder.add_node("answer", answer)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver, store=store)


@pytest.mark.parametrize("shorten_state", [False, True])
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_node_keeps_the_view_short_and_the_memory_up_to_date(how, shorten_state):
    store = InMemoryStore()
    memory = ConversationMemory(window=4, remember_within=1e6)
    graph = remembering_graph(memory, InMemorySaver(), store, shorten_state=shorten_state)
    config = {"configurable": {"thread_id": "t", "user_id": "ann"}}
    for number in range(10):
        asked = {"messages": [("human", f"My aunt Ida number {number} sails.")]}
        if how == "sync":
            out = await asyncio.to_thread(graph.invoke, asked, config)
        else:
            out = await graph.ainvoke(asked, config)
        await memory.aflush()

    assert len(out["messages" if shorten_state else "memory_view"]) <= 6
    assert shorten_state or len(out["messages"]) == 20
    told = ConversationMemory(store=store).load("ann")
    assert "My aunt Ida number 0 sails." in told
    assert "Ida number 3" in told


def test_two_memory_nodes_run_in_one_step():
    notes, other = (ConversationMemory(namespace=[n], store=InMemoryStore()) for n in "ab")
    builder = StateGraph(ConversationState)
    for name, memory in (("notes", notes), ("other", other)):
        builder.add_node(name, ConversationNode(memory)).add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t", "user_id": "ann"}}
    for number in range(3):
        out = graph.invoke({"messages": [("human", f"I own boat {number}.")]}, config)

    assert [m.text for m in out["memory_view"]] == [f"I own boat {n}." for n in range(3)]
    assert notes.load("ann") == other.load("ann") != ""


def test_a_run_without_a_user_has_a_memory_for_its_thread_and_without_a_thread_none():
    graph = remembering_graph(memory := ConversationMemory(window=1), InMemorySaver())
    for _ in range(3):
        graph.invoke(
            {"messages": [("human", "I collect stamps of Peru.")]},
            {"configurable": {"thread_id": "t"}},
        )

    assert "Peru" in memory.load(AnonymousUser.of("t"))
    with pytest.raises(ConfigurationError, match="user_id"):
        remembering_graph(memory).invoke({"messages": [("human", "hi")]})


@pytest.mark.filterwarnings("ignore:.*create_react_agent.*")
def test_the_node_is_a_pre_model_hook():
    heard = []

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **options):
            return self

        def _generate(self, messages, *args, **options):
            heard.append(messages)
            return super()._generate(messages, *args, **options)

    memory = ConversationMemory(window=4, remember_within=1e6)
    model = Model(messages=(AIMessage(f"reply {n}") for n in range(99)))
    agent = create_react_agent(
        model, [], pre_model_hook=ConversationNode(memory), checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "t", "user_id": "ann"}}
    for number in range(6):
        agent.invoke({"messages": [("human", f"My uncle Rolf number {number} paints.")]}, config)

    assert "Rolf number 0" in heard[-1][0].text
    assert heard[-1][0].type == "system"
    assert max(len(messages) for messages in heard) <= 5
    assert len(agent.get_state(config).values["messages"]) == 12


def test_a_conversation_goes_on_when_the_store_is_away(caplog):
    class Away(InMemoryStore):
        async def abatch(self, ops):
            raise ConnectionError("away")

    memory = ConversationMemory(window=1)
    graph = remembering_graph(memory, InMemorySaver(), Away())

    with caplog.at_level(logging.WARNING):
        out = graph.invoke(
            {"messages": [("human", "one"), ("ai", "two"), ("human", "three")]},
            {"configurable": {"thread_id": "t"}},
        )
        assert memory.flush() == 3

    assert [message.text for message in out["messages"]][:3] == ["one", "two", "three"]
    assert "away" in caplog.text


class LoopBound(BaseChatModel):
    """Its asynchronous client keeps its connections on the loop that used it first."""

    home: object = None
    reply: str = "2026-03-05: Has boats."

    @property
    def _llm_type(self):
        return "scripted"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.reply))])

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        here = asyncio.get_running_loop()
        self.home = self.home or here
        if self.home is not here:
            raise RuntimeError("bound to a different event loop")
        return self._generate(messages)


class Boats(BaseModel):
    boats: int | None = None


@pytest.mark.parametrize("schema", [str, Boats])
def test_a_model_that_synchronous_code_folds_with_still_works_in_asynchronous_code(schema):
    change = '{"changes": [{"field": "boats", "action": "set", "value": 2, "message": 1}]}'
    model = LoopBound(reply="2026-03-05: Has boats." if schema is str else change)
    memory = ConversationMemory(model, store=InMemoryStore(), schema=schema)

    memory.save(chat(1), **WHO)
    memory.observe(chat(2), **WHO)
    assert memory.flush() == 0

    async def turn():
        await model.ainvoke("hello")
        await memory.asave(chat(3), **WHO)
        await model.ainvoke("hello again")

    asyncio.run(turn())
    assert len(memory.history("ann")) == 3
