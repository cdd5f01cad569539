"""What a checkpointer holds of a user goes with them, and what is others' as well stays."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from memagent_graph import ConversationMemory, ConversationNode


@pytest.fixture(params=["memory", "sqlite"])
def saver(request, tmp_path):
    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as opened:
            opened.conn.execute("PRAGMA secure_delete=OFF")  # as where SQLite is built without it
            yield opened


def graph(memory, saver):
    builder = StateGraph(MessagesState)
    builder.add_node("remember", ConversationNode(memory))
    builder.add_edge(START, "remember")
    builder.add_edge("remember", END)
    return builder.compile(checkpointer=saver)


def turn(text, user, thread):
    config = {"configurable": {"user_id": user, "thread_id": thread}}
    return {"messages": [HumanMessage(text)]}, config


def threads(saver):
    return {found.config["configurable"]["thread_id"] for found in saver.list(None)}


def test_forgetting_deletes_the_threads_of_a_user_and_says_which_others_spoke_in(saver, tmp_path):
    memory = ConversationMemory(remember_within=0)
    agent = graph(memory, saver)
    agent.invoke(*turn("I breed quokkas.", "ann", "monday"))
    agent.invoke(*turn("I breed bees.", "ann", "tuesday"))
    agent.invoke(*turn("I breed hens.", "ben", "tuesday"))
    agent.invoke(*turn("I breed goats.", "ben", "monday too"))
    memory.flush()

    done = memory.forget("ann", checkpointer=saver, by="support")

    assert done.deleted == ("monday",)
    assert done.threads == ("tuesday",)
    assert done.left == ""
    assert threads(saver) == {"tuesday", "monday too"}
    assert memory.load("ann") == ""
    assert "hens" in memory.load("ben")
    files = [file.read_bytes() for file in tmp_path.glob("threads.sqlite*")]
    assert not any(b"quokkas" in file for file in files)
    assert isinstance(saver, InMemorySaver) or any(b"goats" in file for file in files)


def test_without_a_checkpointer_it_names_the_threads_that_one_may_hold(saver):
    memory = ConversationMemory(remember_within=0)
    graph(memory, saver).invoke(*turn("I breed quokkas.", "ann", "monday"))
    memory.flush()

    done = memory.forget("ann")

    assert (done.threads, done.deleted) == (("monday",), ())
    assert threads(saver) == {"monday"}
    assert memory.forget("ann", checkpointer=saver).deleted == ("monday",)
    assert threads(saver) == set()


def test_a_thread_whose_state_names_nobody_goes_if_it_was_folded(saver):
    memory = ConversationMemory(remember_within=0)
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {})
    builder.add_edge(START, "talk")
    agent = builder.compile(checkpointer=saver)
    for thread in ("monday", "tuesday"):
        agent.invoke(*turn("I breed quokkas.", "ann", thread))
    memory.save([HumanMessage("I breed quokkas.")], user="ann", thread="monday")

    assert memory.forget("ann", checkpointer=saver).deleted == ("monday",)
    assert threads(saver) == {"tuesday"}


async def test_an_async_checkpointer_is_emptied_too(tmp_path):
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver:
        memory = ConversationMemory(remember_within=0)
        await graph(memory, saver).ainvoke(*turn("I breed quokkas.", "ann", "monday"))

        done = await memory.aforget("ann", checkpointer=saver)

        assert done.deleted == ("monday",)
        assert [found async for found in saver.alist(None)] == []
        files = [file.read_bytes() for file in tmp_path.glob("threads.sqlite*")]
        assert not any(b"quokkas" in file for file in files)
