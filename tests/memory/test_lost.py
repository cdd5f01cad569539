"""What a memory does when a server loses items of it, and when prune takes old ones."""

from __future__ import annotations

import time

import pytest
from fixed_readers import ScriptedReader
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory, MemAgentMiddleware
from memagent_graph.conversation.users import Users
from memagent_graph.testing import ScriptedChatModel, call_tool

DAYS = ("monday", "tuesday", "friday")


def tell(store, *days, **options):
    """Fold a message a day; return the memory that did."""
    memory = ConversationMemory(ScriptedReader(), store=store, **options)
    for day in days:
        memory.save([HumanMessage(f"On {day} I sailed.", id=day)], user="ann", thread=day)
    return memory


@pytest.mark.parametrize(
    ("lost", "left", "warning"),
    [
        pytest.param(["head"], ["monday", "tuesday"], "is gone", id="the head"),
        pytest.param([0], ["monday"], "is gone: an earlier one is continued", id="the newest"),
        pytest.param([0, 1], [], "begins anew", id="all versions"),
        pytest.param([], ["monday", "tuesday"], "", id="nothing"),
    ],
)
def test_what_a_server_lost_is_no_new_beginning_unless_it_is_all(
    store, caplog, lost, left, warning
):
    memory = tell(store, "monday", "tuesday")
    records, versions = Users(store).of("ann").bank, memory.history("ann")
    for one in lost:
        place = (records.heads, "memory") if one == "head" else (records.versions, versions[one].id)
        store.delete(*place)

    tell(store, "friday")

    assert [day for day in DAYS if day in memory.load("ann")] == [*left, "friday"]
    assert warning in caplog.text
    if lost and left:
        assert "was gone" in "".join(memory.history("ann")[0].warnings)
    if not lost:
        memory.forget("ann")
        tell(store, "friday")
        assert memory.history("ann")[0].warnings == ()
        assert caplog.text == ""


@pytest.mark.slow
def test_prune_takes_what_old_threads_leave(store):
    memory = tell(store, *(f"day {n}" for n in range(30)), keep_versions=2)
    users = Users(store)
    before = users.held("ann").items

    assert users.prune(days=1, by="olga").marks == {}
    time.sleep(1.1)  # SQLite's times have seconds
    preview = users.prune(days=1 / 86_400, by="olga", preview=True)
    done = users.prune(days=1 / 86_400, by="olga")

    assert preview.marks == done.marks == {"ann": 89}
    held = users.held("ann")
    assert before - held.items >= 59
    assert held.items < 12
    assert held.threads == ()
    assert "day 29" in memory.load("ann")
    assert [change.what for change in users.history("ann")[1]] == ["folded"]


ANN = {"configurable": {"user_id": "ann", "thread_id": "monday"}}


def agent_with(memory, *replies, tools=(), saver=None):
    model, middleware = ScriptedChatModel(*replies), [MemAgentMiddleware(memory)]
    return create_agent(model, [*tools], middleware=middleware, checkpointer=saver)


@pytest.mark.parametrize("window", [2, 20])
def test_the_words_of_an_agent_to_its_subagent_are_not_the_users(window):
    memory = ConversationMemory("extractive", store=InMemoryStore(), window=window)
    subagent = agent_with(memory, "Found.")

    @tool
    def research(task: str) -> str:
        """Research something."""
        said = [("human", "I was told to hurry."), ("ai", "Yes."), ("human", task)]
        return subagent.invoke({"messages": said})["messages"][-1].text

    replies = call_tool("research", task="I want the prices of goats."), "Done."
    parent = agent_with(memory, *replies, tools=[research], saver=InMemorySaver())

    parent.invoke({"messages": [HumanMessage("I live in Husum.")]}, ANN)

    text = memory.load("ann") + memory.prompt("ann", about="prices of goats")[0].text
    assert "Husum" in text
    assert "prices" not in text
    assert "hurry" not in text


def test_the_same_said_again_in_a_thread_is_remembered_again():
    memory = ConversationMemory("extractive", store=InMemoryStore(), remember_within=0)
    agent = agent_with(memory, "I see.", saver=InMemorySaver())

    for text in ("I ran a mile.", "I sail.", "I ran a mile.", "I slept."):
        agent.invoke({"messages": [("human", text)]}, ANN)
        memory.flush()

    folded = [change.messages for change in memory.users().history("ann")[1]]
    assert [len(messages) for messages in folded] == [2, 2, 2, 2]
