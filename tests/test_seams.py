"""Private names of LangGraph of which no other test shows what breaks without them."""

from typing import TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from memagent_graph import create_memagent, seams


class State(TypedDict, total=False):
    found: object


class Larger(State, total=False):
    other: int


THREAD = {"configurable": {"thread_id": "1"}}


def graph(work, saver=None, state=State):
    def node(state: State, config: RunnableConfig) -> State:
        return {"found": work(config)}

    return StateGraph(state).add_node("node", node).add_edge(START, "node").compile(saver)


def test_a_node_knows_whether_it_has_a_reply_to_its_interrupt():
    found = []

    def ask(config):
        found.append(seams.is_answered(config))
        return [interrupt("first"), interrupt("second")]

    agent = graph(ask, InMemorySaver())

    agent.invoke({}, THREAD)
    agent.invoke({}, THREAD)  # a new turn
    agent.invoke(Command(resume=0), THREAD)
    agent.invoke({}, THREAD)
    (asked,) = agent.get_state(THREAD).interrupts
    agent.invoke(Command(resume={asked.id: "by its id"}), THREAD)
    agent.invoke(Command(resume="again"), THREAD)

    assert found == [False, False, True, False, True, True]
    assert not seams.is_answered({})


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_a_node_knows_the_keys_of_the_state_that_it_writes_to(saver):
    agent = graph(lambda config: sorted(seams.channels_of(config)), saver, Larger)

    assert agent.invoke({"other": 1}, THREAD)["found"] == ["found", "other"]
    assert seams.channels_of({}) == {}


def test_no_message_is_replaced_where_the_state_has_none():
    agent = graph(lambda config: seams.replaces_messages(config, [HumanMessage("B")]))

    assert agent.invoke({"found": None})["found"] is False
    assert not seams.replaces_messages({}, [HumanMessage("B")])


def test_a_graph_within_a_node_finds_the_checkpointer_of_its_host():
    inner, saver = create_memagent(), InMemorySaver()
    host = graph(lambda config: seams.checkpointer_of(inner, config) is not None, saver)

    assert host.invoke({}, THREAD)["found"]
    assert seams.checkpointer_of(inner, THREAD) is None
    assert seams.checkpointer_of(create_memagent(checkpointer=saver), THREAD) is not None


def test_a_checkpointer_is_lent_to_a_graph_within_a_node():
    inner, saver = graph(lambda _: "kept"), InMemorySaver()

    inner.invoke({}, seams.with_checkpointer(THREAD, saver))

    assert saver.get_tuple(THREAD).checkpoint["channel_values"]["found"] == "kept"


@pytest.mark.parametrize("config", [{}, THREAD])
def test_a_tool_takes_the_stream_of_its_host_and_none_of_its_checkpoints(config):
    found = []
    agent = graph(lambda config: found.append(seams.with_runtime_only(config)), InMemorySaver())

    agent.invoke({}, THREAD)

    (kept,) = found
    assert seams.runtime_of(kept) is not None
    assert len(kept["configurable"]) == 1
    assert seams.with_runtime_only(config)["configurable"] == {}


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize("resumed", [True, False])
async def test_a_node_knows_the_runs_above_it_with_their_input_and_their_first_step(saver, resumed):
    def stop(state: State) -> State:
        return {"found": interrupt("Go on?")} if resumed and saver else {}

    def inner(state: State, config: RunnableConfig) -> State:
        own, above = seams.runs_of(config)
        seen = above.channels["seen"].get()
        return {"found": [seen, own.input["found"], above.input, above.began]}

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
    assert seams.runs_of(None) == []
