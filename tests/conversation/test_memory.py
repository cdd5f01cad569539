import asyncio
import logging
import random
import re
from itertools import pairwise

import pytest
from conversations import NEVER, ROOMY, Keeper, graph_with, is_valid, of, say, turns, words_in
from fixed_readers import Broken
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, ConversationNode, ConversationState, ReadingConfig
from memagent_graph.memory.redis import RedisStore
from memagent_graph.testing import ScriptedChatModel

WHO = {"user": "ann", "thread": "monday"}
AT_WINDOW = {**NEVER, "config": ROOMY}


def chat(count, start=0):
    """Human and AI messages in turn; a human message comes last."""
    kinds = (HumanMessage, AIMessage)
    return [kinds[i % 2](f"saying {i}.", id=f"id-{i}") for i in range(start, start + 2 * count - 1)]


def said(memory):
    return [int(number) for number in re.findall(r"saying (\d+)\.", memory)]


def test_what_waits_leaves_where_the_rest_has_no_room_and_is_found_word_for_word():
    config = ReadingConfig(chunk_tokens=500, memory_tokens=400)
    memory = ConversationMemory(reader := Keeper(), window=20, config=config, **NEVER)
    long = [HumanMessage(f"My boat {n} is blue. " + "So it is. " * 60, id=f"{n}") for n in range(9)]

    stays = memory.observe(long, **WHO)

    assert stays[-1].id == "8"
    assert len(stays) < 5
    assert "My boat 0 is blue." in memory.prompt("ann", about="boat 0")[0].text
    assert memory.flush("ann") == 0
    assert any("My boat 0" in text for text in reader.calls)
    assert "400 tokens: 5 lines of it" in memory.history("ann")[0].warnings[0]


@pytest.mark.slow
async def test_what_folding_costs_does_not_grow_with_what_was_folded():
    """Operations, what is written and what the model reads, of as many turns later on."""

    class Counting(InMemoryStore):
        work = 0

        def batch(self, ops):
            found = super().batch(ops := [*ops])
            for op, result in zip(ops, found, strict=True):
                lines = isinstance(op, SearchOp) and op.namespace_prefix[-1] == "changes"
                if not lines:  # of which the oldest go now and then
                    self.work += 1000 + len(str(op)) + len(str(result))
            return found

        async def abatch(self, ops):
            return self.batch(ops)

    # Few tokens, so that pages of messages fill: each turn writes the last page again.
    store, model = Counting(), ScriptedChatModel("2026-03-05: Says little.")
    memory = ConversationMemory(model, store=store, episode_tokens=1_000)
    work, read = [0], [0]
    for part in range(4):
        for turn in range(1000 + 60 * part, 1060 + 60 * part):
            question = HumanMessage(f"saying {turn}.", id=f"{turn}")
            await memory.asave([question, AIMessage("I see.", id=f"-{turn}")], **WHO)
        work.append(store.work)
        read.append(sum(map(len, model.prompts)))

    costs = [after - before for before, after in pairwise(work)]
    assert costs[3] < 1.01 * costs[2]  # up to 100 ids of messages and 10 versions are kept
    assert (read[4] - read[3], len(model.calls)) == (read[3] - read[2], 240)


def test_users_do_not_see_each_other():
    memory = ConversationMemory(Keeper(), config=ROOMY)

    memory.save(chat(1), user="ann", thread="t")
    memory.save(chat(2), user="ann.b", thread="t")

    assert [said(memory.load(user)) for user in ("ann", "ann.b", "an")] == [[0], [0, 1, 2], []]


async def test_two_turns_of_one_user_at_once_lose_nothing():
    store = InMemoryStore()
    memory = ConversationMemory(Keeper(wait=lambda: random.uniform(0, 0.01)), store=store)

    turns = ({"user": "ann", "thread": f"thread {number}"} for number in range(12))
    await asyncio.gather(*(memory.asave(chat(1, start=n), **ids) for n, ids in enumerate(turns)))

    assert sorted(said(await memory.aload("ann"))) == [*range(12)]
    bank = memory.users().of("ann").bank
    stored = store.search((*bank.namespace, "versions"), limit=100)  # none that lost its race
    assert {item.key for item in stored} == {v.id for v in await bank.ahistory("memory")}


async def test_the_same_turn_run_twice_at_once_is_folded_once():
    memory = ConversationMemory(Keeper(wait=lambda: 0.01), window=4, **AT_WINDOW)

    await asyncio.gather(*(memory.asave(chat(4), **WHO) for _ in range(5)))

    assert said(await memory.aload("ann")) == [*range(7)]


def test_forgetting_a_user_leaves_nothing_of_them_in_the_store(store, request):
    memory = ConversationMemory(store=store, window=2)
    for user in ("ann", "annabel", "Ann"):
        memory.save([("human", f"I am {user} and keep llamas.")], user=user, thread="x-thread")

    assert memory.forget("ann").items > 0

    assert (memory.load("ann"), memory.forget("ann").items) == ("", 0)
    assert "annabel" in memory.load("annabel")
    assert "Ann and" in memory.load("Ann")
    assert not any("user-ann" in item.namespace for item in store.search((), limit=1000))
    if isinstance(store, RedisStore):
        names = request.getfixturevalue("redis_content")()
        assert words_in(names, "{user-annabel}/", "{user-ann}") == ["{user-annabel}/"]


@pytest.mark.slow
@settings(max_examples=60)
@given(turns(), st.integers(1, 9), st.integers(200, 2000), st.integers(0, 2**32))
def test_whatever_fails_each_message_is_folded_once_or_still_there(
    conversation, window, chunk_tokens, seed
):
    chance = random.Random(seed)  # Hypothesis has one for its own thread alone
    reader = Keeper(fails=lambda: chance.random() < 0.3)
    config = ReadingConfig(memory_tokens=10**6, chunk_tokens=chunk_tokens)
    memory = ConversationMemory(reader, window=window, config=config, **NEVER)
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
    system, kept = ([m for m in all_ if m.type == "system"] for all_ in (everything, messages))
    assert kept == system


@pytest.mark.parametrize("shorten_state", [False, True])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_node_keeps_the_view_short_and_the_memory_up_to_date(how, shorten_state):
    memory, store = ConversationMemory(window=4, **NEVER), InMemoryStore()
    graph = graph_with(memory, store=store, behind=False, shorten_state=shorten_state)
    for number in range(10):
        out = say(graph, f"My aunt Ida number {number} sails.", of("ann"), how)
        memory.flush()

    assert len(out["messages" if shorten_state else "memory_view"]) <= 6
    assert shorten_state or len(out["messages"]) == 20
    told = ConversationMemory(store=store).load("ann")
    assert all(text in told for text in ("My aunt Ida number 0 sails.", "Ida number 3"))


def test_two_memory_nodes_run_in_one_step():
    notes, other = (ConversationMemory(namespace=[n], store=InMemoryStore()) for n in "ab")
    builder = StateGraph(ConversationState)
    for name, memory in (("notes", notes), ("other", other)):
        builder.add_node(name, ConversationNode(memory)).add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    for number in range(3):
        out = say(graph, f"I own boat {number}.", of("ann"))

    assert [m.text for m in out["memory_view"]] == [f"I own boat {n}." for n in range(3)]
    assert notes.load("ann") == other.load("ann") != ""


def test_how_long_a_store_is_waited_for_is_read_when_it_is_first_used(monkeypatch):
    memory = ConversationMemory(Keeper(), window=6, **AT_WINDOW)
    memory.observe(chat(5), **WHO)
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "soon")

    assert said(memory.load("ann")) == [*range(9)]


def test_a_conversation_goes_on_when_the_store_is_away(caplog):
    store = Broken()
    store.away = True
    memory = ConversationMemory(window=1)
    said = {"messages": [("human", "one"), ("ai", "two"), ("human", "three")]}

    out = graph_with(memory, store=store).invoke(said, {"configurable": {"thread_id": "t"}})

    assert memory.flush() == 4
    assert [message.text for message in out["messages"]][:3] == ["one", "two", "three"]
    assert "gone" in caplog.text
