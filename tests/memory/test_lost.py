"""What a memory does when a server loses items of it, and when prune takes old ones."""

from __future__ import annotations

import asyncio
import time

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, MemAgentMiddleware
from memagent_graph.conversation.users import Users


def remember(store, *texts, **options):
    memory = ConversationMemory("extractive", store=store, **options)
    for n, text in enumerate(texts):
        memory.save([HumanMessage(text, id=text)], user="ann", thread=f"t{n}")
    return memory


def records_of(store):
    return Users(store).of("ann").bank.records


def test_a_lost_head_is_no_new_beginning(store, caplog):
    memory = remember(store, "I live in Husum.", "I breed goats.")
    store.delete(records_of(store).heads, "memory")

    memory.save("I sail.", user="ann", thread="u")
    text = memory.load("ann")

    assert all(word in text for word in ("Husum", "goats", "sail"))
    assert "is gone" in caplog.text
    assert "was gone" in "".join(memory.history("ann")[0].warnings)


def test_without_its_newest_version_a_memory_continues_the_one_before(store, caplog):
    memory = remember(store, "I live in Husum.", "I breed goats.")
    newest = memory.history("ann")[0].id
    store.delete(records_of(store).versions, newest)

    memory.save("I sail.", user="ann", thread="u")
    text = memory.load("ann")

    assert "Husum" in text
    assert "sail" in text
    assert "goats" not in text
    assert "is gone: an earlier one is continued" in caplog.text
    assert "was gone" in "".join(memory.history("ann")[0].warnings)
    assert "sail" in memory.load("ann")


def test_without_any_version_it_says_that_it_begins_anew(store, caplog):
    memory = remember(store, "I live in Husum.")
    store.delete(records_of(store).versions, memory.history("ann")[0].id)

    memory.save("I sail.", user="ann", thread="u")
    text = memory.load("ann")

    assert "sail" in text
    assert "begins anew" in caplog.text


def test_a_new_user_begins_without_a_warning(store, caplog):
    memory = remember(store, "I live in Husum.")

    assert memory.history("ann")[0].warnings == ()
    assert caplog.text == ""


def test_a_forgotten_user_begins_without_a_warning(store, caplog):
    memory = remember(store, "I live in Husum.")
    memory.forget("ann")

    assert "Husum" not in memory.save([("human", "I sail.")], user="ann", thread="u")
    assert caplog.text == ""


@pytest.mark.slow
def test_prune_takes_what_old_threads_leave(store):
    memory = remember(store, *(f"I own {n} goats." for n in range(30)), keep_versions=2)
    before = Users(store).held("ann").items

    time.sleep(1.1)  # SQLite's times have seconds
    preview = Users(store).prune(days=1 / 86_400, by="olga", preview=True)
    done = Users(store).prune(days=1 / 86_400, by="olga")

    assert preview.marks == done.marks == {"ann": 89}
    held = Users(store).held("ann")
    assert before - held.items >= 59
    assert held.items < 12
    assert held.threads == ()
    assert "I own 29 goats." in memory.load("ann")
    assert [change.what for change in Users(store).history("ann")[1]] == ["folded"]


def test_prune_leaves_what_is_young(store):
    remember(store, *(f"I own {n} goats." for n in range(3)))

    done = Users(store).prune(days=1, by="olga")

    assert done.marks == {}
    assert len(Users(store).held("ann").threads) == 3


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


def agent_with(memory, *replies, tools=(), saver=None):
    model = Model(messages=iter(replies))
    return create_agent(
        model, [*tools], middleware=[MemAgentMiddleware(memory)], checkpointer=saver
    )


ANN = {"configurable": {"user_id": "ann", "thread_id": "monday"}}


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("window", [2, 20])
def test_the_words_of_an_agent_to_its_subagent_are_not_the_users(how, window):
    memory = ConversationMemory("extractive", store=InMemoryStore(), window=window)
    subagent = agent_with(memory, AIMessage("Found."), AIMessage("Found."))

    @tool
    def research(task: str) -> str:
        """Research something."""
        said = [("human", "I was told to hurry."), ("ai", "Yes."), ("human", task)]
        return subagent.invoke({"messages": said})["messages"][-1].text

    call = {"name": "research", "args": {"task": "I want the prices of goats."}, "id": "c"}
    parent = agent_with(
        memory,
        AIMessage("", tool_calls=[call]),
        AIMessage("Done."),
        tools=[research],
        saver=InMemorySaver(),
    )
    given = {"messages": [HumanMessage("I live in Husum.")]}

    if how == "sync":
        parent.invoke(given, ANN)
    else:
        asyncio.run(parent.ainvoke(given, ANN))
    text = memory.load("ann")

    assert "Husum" in text
    assert "prices" not in text
    assert "hurry" not in text
    assert "prices" not in "".join(m.text for m in memory.prompt("ann", about="prices of goats"))


def test_an_agent_that_is_a_node_hears_the_user():
    memory = ConversationMemory("extractive", store=InMemoryStore())
    builder = StateGraph(MessagesState).add_node("chat", agent_with(memory, AIMessage("Hello.")))
    graph = builder.add_edge(START, "chat").compile(InMemorySaver())

    graph.invoke({"messages": [HumanMessage("I live in Husum.")]}, ANN)

    assert "Husum" in memory.load("ann")


def test_the_same_said_again_in_a_thread_is_remembered_again():
    memory = ConversationMemory("extractive", store=InMemoryStore(), remember_within=0)
    agent = agent_with(memory, *(AIMessage("I see.") for _ in range(9)), saver=InMemorySaver())

    for text in ("I ran a mile.", "I sail.", "I ran a mile.", "I slept."):
        agent.invoke({"messages": [("human", text)]}, ANN)
        memory.flush()

    folded = [change.messages for change in Users(memory.users().store).history("ann")[1]]
    assert [len(messages) for messages in folded] == [2, 2, 2, 2]
