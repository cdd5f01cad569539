"""Private names of LangGraph and LangChain: what each is for, and so what breaks without it."""

import asyncio
import operator
import sqlite3
from threading import get_ident
from typing import Annotated, TypedDict

import aiosqlite
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from memagent_graph import create_memagent
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.seams import (
    RunnableCallable,
    as_kind,
    call_with_connection,
    channels_of,
    checkpointer_of,
    drop_empty_namespaces,
    find_identifying_params,
    is_answered,
    replaces_messages,
    runs_of,
    runtime_of,
    saver_of,
    with_checkpointer,
    with_runtime_only,
)


class State(TypedDict, total=False):
    found: object


def graph(node, checkpointer=None):
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer)


def both(work):
    """A node of which both faces do the same."""

    def sync(state: State, config: RunnableConfig, runtime: Runtime) -> State:
        return {"found": work(config, runtime)}

    async def from_async(state: State, config: RunnableConfig, runtime: Runtime) -> State:
        return {"found": work(config, runtime)}

    return RunnableCallable(sync, from_async, name="node", trace=False)


def test_a_node_knows_whether_it_has_a_reply_to_its_interrupt():
    found = []

    def ask(config, _):
        found.append(is_answered(config))
        return [interrupt("first"), interrupt("second")]

    agent, at = graph(both(ask), InMemorySaver()), {"configurable": {"thread_id": "1"}}

    agent.invoke({}, at)
    agent.invoke({}, at)  # a new turn
    agent.invoke(Command(resume=0), at)
    agent.invoke({}, at)
    (asked,) = agent.get_state(at).interrupts
    agent.invoke(Command(resume={asked.id: "by its id"}), at)
    agent.invoke(Command(resume="again"), at)

    assert found == [False, False, True, False, True, True]
    assert not is_answered({})


async def test_a_node_knows_the_keys_of_the_state_that_it_writes_to():
    class Larger(State, total=False):
        other: int

    def names(state: Larger, config: RunnableConfig) -> State:
        return {"found": sorted(channels_of(config))}

    builder = StateGraph(Larger)
    builder.add_node("node", names)
    builder.add_edge(START, "node")
    keys = ["found", "other"]

    assert builder.compile().invoke({"other": 1})["found"] == keys
    assert (
        await builder.compile(InMemorySaver()).ainvoke(
            {"other": 1}, {"configurable": {"thread_id": "1"}}
        )
    )["found"] == keys
    assert channels_of({}) == {}


def test_a_node_has_a_face_for_sync_code_and_one_for_async_code():
    def sync(state: State, config: RunnableConfig, runtime: Runtime) -> State:
        return {"found": ("sync", config["configurable"]["it"], runtime.stream_writer is not None)}

    async def from_async(state: State, config: RunnableConfig, runtime: Runtime) -> State:
        return {
            "found": ("async", config["configurable"]["it"], asyncio.current_task() is not None)
        }

    agent = graph(RunnableCallable(sync, from_async, name="node", trace=False))
    config = {"configurable": {"it": 7}}

    assert agent.invoke({}, config)["found"] == ("sync", 7, True)
    assert asyncio.run(agent.ainvoke({}, config))["found"] == ("async", 7, True)


def test_a_compiled_graph_becomes_one_of_our_kind():
    class Kind(CompiledStateGraph):
        pass

    saver = InMemorySaver()
    mine = as_kind(Kind, graph(both(lambda *_: 1), saver))

    assert type(mine) is Kind
    assert type(mine.with_config({"tags": ["x"]})) is Kind
    assert mine.invoke({}, {"configurable": {"thread_id": "1"}}) == {"found": 1}
    assert mine.checkpointer is saver


def test_a_graph_within_a_node_finds_the_checkpointer_of_its_host():
    inner, saver = create_memagent(), InMemorySaver()
    at = {"configurable": {"thread_id": "1"}}
    host = graph(both(lambda config, _: checkpointer_of(inner, config) is not None), saver)

    assert host.invoke({}, at)["found"]
    assert checkpointer_of(inner, at) is None
    assert checkpointer_of(create_memagent(checkpointer=saver), at) is not None


def test_a_checkpointer_is_lent_to_a_graph_within_a_node():
    inner, saver = graph(both(lambda *_: "kept")), InMemorySaver()
    at = {"configurable": {"thread_id": "1"}}

    inner.invoke({}, with_checkpointer(at, saver))

    assert saver.get_tuple(at).checkpoint["channel_values"]["found"] == "kept"


def test_a_node_knows_the_stream_of_its_host_and_the_top_has_none():
    def write(config, _):
        runtime_of(config).stream_writer("from within")

    assert list(graph(both(write)).stream({}, stream_mode="custom")) == ["from within"]
    assert runtime_of({}) is None


@pytest.mark.parametrize("config", [{}, {"configurable": {"thread_id": "1"}}])
def test_a_tool_takes_the_stream_of_its_host_and_none_of_its_checkpoints(config):
    found = []
    agent = graph(both(lambda config, _: found.append(with_runtime_only(config))), InMemorySaver())

    agent.invoke({}, {"configurable": {"thread_id": "1"}})

    (kept,) = found
    assert runtime_of(kept) is not None
    assert len(kept["configurable"]) == 1
    assert with_runtime_only(config)["configurable"] == {}


def test_two_configurations_of_a_model_are_told_apart():
    cold, warm = (
        ChatEndpoint(model="m", base_url="http://127.0.0.1:1/v1", temperature=t) for t in (0.0, 1.0)
    )

    assert find_identifying_params(cold) != find_identifying_params(warm)


@pytest.mark.parametrize(("reducer", "replaces"), [(add_messages, True), (operator.add, False)])
def test_a_node_knows_whether_a_message_takes_the_place_of_the_one_with_its_id(reducer, replaces):
    Talk = TypedDict("Talk", {"messages": Annotated[list, reducer], "found": object})  # noqa: UP013

    def node(state, config: RunnableConfig):
        return {"found": replaces_messages(config, [HumanMessage("B", id="1")])}

    builder = StateGraph(Talk).add_node("node", node).add_edge(START, "node")
    out = builder.compile().invoke({"messages": [HumanMessage("A", id="1")]})

    assert out["found"] == replaces
    assert [message.text for message in out["messages"]] == ["A"]
    assert not replaces_messages({}, [HumanMessage("B")])


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize("resumed", [True, False])
async def test_a_node_knows_the_runs_above_it_with_their_input_and_their_first_step(saver, resumed):
    def stop(state: State) -> State:
        return {"found": interrupt("Go on?")} if resumed and saver else {}

    def inner(state: State, config: RunnableConfig) -> State:
        own, above = runs_of(config)
        return {
            "found": [above.channels["seen"].get(), own.input["found"], above.input, above.began]
        }

    class Outer(State):
        seen: str

    nested = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    builder = StateGraph(Outer).add_node("stop", stop).add_node("nested", nested)
    graph = builder.add_edge(START, "stop").add_edge("stop", "nested").compile(saver)
    config = {"configurable": {"thread_id": str(resumed)}}

    given = {"found": "here", "seen": "above"}
    out = await graph.ainvoke(given, config)
    if resumed and saver:
        out = await graph.ainvoke(Command(resume="here"), config)
        assert out["found"] == ["above", "here", Command(resume="here"), 1]
    else:
        assert out["found"] == ["above", "here", given, -1]
    assert runs_of(None) == []


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_a_node_knows_the_checkpointer_of_its_run(saver):
    inner = graph(both(lambda config, _: saver_of(config) is saver))

    out = graph(inner, saver).invoke({}, {"configurable": {"thread_id": "t"}})

    assert out["found"]
    assert saver_of(None) is None


async def test_a_function_has_the_connection_of_an_asynchronous_one_in_its_thread(tmp_path):
    async with aiosqlite.connect(tmp_path / "file") as connection:
        threads = [await call_with_connection(connection, lambda _: get_ident()) for _ in "ab"]
        found = await call_with_connection(connection, lambda file: file.execute("SELECT 1"))
        with pytest.raises(sqlite3.OperationalError):
            await call_with_connection(connection, lambda file: file.execute("no SQL"))

    assert threads[0] == threads[1] != get_ident()
    assert isinstance(found, sqlite3.Cursor)
    with pytest.raises(ValueError, match="no active connection"):
        await call_with_connection(connection, lambda file: file)


def test_a_store_in_memory_forgets_the_labels_of_what_was_deleted():
    store = InMemoryStore()
    store.put(("user-ann", "notes"), "a", {"text": "x"})
    store.put(("user-ben", "notes"), "b", {"text": "x"})
    store.delete(("user-ann", "notes"), "a")
    assert ("user-ann", "notes") in store.list_namespaces()  # as if there were something

    drop_empty_namespaces(store)

    assert store.list_namespaces() == [("user-ben", "notes")]
    assert store.get(("user-ben", "notes"), "b").value == {"text": "x"}
