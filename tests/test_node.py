from __future__ import annotations

import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from doubles import ChainReader, numbered
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode, ReadingConfig, create_memagent

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(60)


def read_through(document: str = TEXT) -> str:
    agent = create_memagent(ChainReader(), config=SMALL)
    return agent.invoke({"question": "?", "document": document})["answer"]


class DictHost(TypedDict, total=False):
    query: str
    contract: str
    finding: str
    notes: str


@dataclass
class DataclassHost:
    query: str
    contract: str
    finding: str = ""
    notes: str = ""


class PydanticHost(BaseModel):
    query: str
    contract: str
    finding: str = ""
    notes: str = ""


def host(schema=DictHost, *, node=None, **compile_options):
    node = node or MemAgentNode(
        ChainReader(),
        question="query",
        document="contract",
        answer="finding",
        memory="notes",
        config=SMALL,
        name="reading",
    )
    builder = StateGraph(schema)
    builder.add_node("read", node)
    builder.add_edge(START, "read")
    return builder.compile(**compile_options)


@pytest.mark.parametrize("schema", [DictHost, DataclassHost, PydanticHost])
async def test_a_node_maps_the_keys_of_any_kind_of_state_sync_and_async(schema):
    graph = host(schema)
    asked = {"query": "?", "contract": TEXT}

    sync = graph.invoke(asked)
    from_async = await graph.ainvoke(asked)

    assert sync["finding"] == sync["notes"] == from_async["finding"] == read_through()


def test_values_are_taken_out_of_the_state_by_functions_too():
    node = MemAgentNode(
        ChainReader(),
        question=lambda state: state["query"].upper(),
        document=lambda state: state["contract"] + TEXT,
        answer=lambda output: {"finding": f"{output['reader']}: {output['answer']}"},
        config=SMALL,
    )

    out = host(node=node).invoke({"query": "?", "contract": TEXT})

    assert out["finding"] == f"chain: {read_through(TEXT + TEXT)}"


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_the_host_sees_each_event_once_with_and_without_subgraphs(subgraphs):
    graph = host()
    asked = {"query": "?", "contract": TEXT}

    sync = list(graph.stream(asked, stream_mode="custom", subgraphs=subgraphs))
    from_async = [
        part async for part in graph.astream(asked, stream_mode="custom", subgraphs=subgraphs)
    ]

    for parts in (sync, from_async):
        events = [part[1] if subgraphs else part for part in parts]
        assert [event["event"] for event in events].count("opened") == 1
        steps = [event["chunk"] for event in events if event["event"] == "chunk"]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > 5


def test_a_graph_added_as_it_is_reports_to_the_host_as_well():
    class Host(TypedDict, total=False):
        question: str
        document: str
        answer: str

    builder = StateGraph(Host)
    builder.add_node("read", create_memagent(ChainReader(), config=SMALL))
    builder.add_edge(START, "read")
    asked = {"question": "?", "document": TEXT}

    events = list(builder.compile().stream(asked, stream_mode="custom"))

    assert events[0]["event"] == "opened"
    assert events[-1]["answer"] == read_through()


def test_the_host_draws_and_finds_the_reading_inside_the_node():
    graph = host()

    assert "overwrite_memory" in graph.get_graph(xray=True).draw_mermaid()
    assert [name for name, _ in graph.get_subgraphs()] == ["read"]


def test_a_pause_inside_is_seen_edited_and_resumed_from_the_host(tmp_path):
    def paused_host(saver):
        node = MemAgentNode(
            ChainReader(),
            question="query",
            document="contract",
            answer="finding",
            config=SMALL,
            interrupt_before=["overwrite_memory"],
        )
        return host(node=node, checkpointer=saver)

    file = str(tmp_path / "c.sqlite")
    thread = {"configurable": {"thread_id": "1"}}
    with SqliteSaver.from_conn_string(file) as saver:
        graph = paused_host(saver)
        graph.invoke({"query": "?", "contract": TEXT}, thread)
        graph.invoke(None, thread)
        inner = graph.get_state(thread, subgraphs=True).tasks[0].state
        assert inner.values["progress"]["step"] == 1
        graph.update_state(inner.config, {"memory": "edited"})

    with SqliteSaver.from_conn_string(file) as saver:
        graph = paused_host(saver)
        out = graph.invoke(None, thread)
        steps = 0
        while not out.get("finding"):
            out = graph.invoke(None, thread)
            steps += 1

    assert out["finding"] != read_through()
    assert 5 < steps < 60


@pytest.mark.parametrize("kind", ["text", "file"])
@pytest.mark.parametrize("node", ["read_chunk", "overwrite_memory"])
def test_send_reads_many_documents_at_once_and_each_goes_on_after_a_stop(kind, node, tmp_path):
    class Host(TypedDict, total=False):
        documents: list[str]
        answers: Annotated[list[str], operator.add]

    texts = [numbered(20 + 10 * number) for number in range(3)]
    documents = texts
    if kind == "file":
        documents = [str(tmp_path / f"{number}.txt") for number in range(3)]
        for path, text in zip(documents, texts, strict=True):
            Path(path).write_text(text)

    def fan_out():
        reading = MemAgentNode(
            ChainReader(),
            question=lambda task: "?",
            document=lambda task: Path(task["it"]) if kind == "file" else task["it"],
            answer=lambda output: {"answers": [output["answer"]]},
            config=SMALL,
            interrupt_before=[node],
        )
        builder = StateGraph(Host)
        builder.add_node("read", reading)
        builder.add_conditional_edges(
            START, lambda state: [Send("read", {"it": it}) for it in state["documents"]], ["read"]
        )
        return builder

    thread = {"configurable": {"thread_id": "1"}}
    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        fan_out().compile(checkpointer=saver).invoke({"documents": documents}, thread)

    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        graph = fan_out().compile(checkpointer=saver)
        first, *_ = graph.get_state(thread, subgraphs=True).tasks
        graph.update_state(first.state.config, {"memory": "edited"})
        out = graph.invoke(None, thread)
        while len(out.get("answers", [])) < 3:
            out = graph.invoke(None, thread)

    unedited = set(map(read_through, texts))
    assert len(set(out["answers"])) == 3
    assert len(unedited.intersection(out["answers"])) == 2


def test_events_tell_branches_of_the_host_s_send_apart():
    class Host(TypedDict, total=False):
        asked: list[tuple[str, str]]
        answers: Annotated[list[str], operator.add]

    reading = MemAgentNode(
        ChainReader(),
        question=lambda task: task["it"][0],
        document=lambda task: task["it"][1],
        answer=lambda output: {"answers": [output["answer"]]},
        config=SMALL,
    )
    builder = StateGraph(Host)
    builder.add_node("read", reading)
    builder.add_conditional_edges(
        START, lambda state: [Send("read", {"it": it}) for it in state["asked"]], ["read"]
    )
    asked = [("Who?", TEXT), ("Why?", TEXT), ("Why?", TEXT)]

    events = list(builder.compile().stream({"asked": asked}, stream_mode="custom"))

    branches = {}
    for event in events:
        branches.setdefault(event["task"], []).append(event)
    assert "" not in branches
    assert len(branches) == 3
    for told in branches.values():
        kinds = [event["event"] for event in told]
        assert kinds == ["opened", *["chunk"] * (len(told) - 2), "answer"]
        steps = [event["chunk"] for event in told if event["event"] == "chunk"]
        assert steps == list(range(1, len(steps) + 1))
    questions = [told[-1]["question"] for told in branches.values()]
    assert sorted(questions) == ["Who?", "Why?", "Why?"]


def test_an_own_checkpointer_keeps_the_reading_of_a_host_that_has_none():
    saver = InMemorySaver()
    node = MemAgentNode(
        ChainReader(),
        question="query",
        document="contract",
        answer="finding",
        config=SMALL,
        checkpointer=saver,
    )

    thread = {"configurable": {"thread_id": "own"}}
    out = host(node=node).invoke({"query": "?", "contract": TEXT}, thread)

    assert out["finding"] == read_through()
    assert len(list(saver.list(thread))) > 10


def test_a_node_in_a_loop_of_the_host_reads_anew_each_time():
    class Host(TypedDict, total=False):
        question: str
        document: str
        answer: str
        rounds: Annotated[int, operator.add]

    node = MemAgentNode(ChainReader(), config=SMALL)
    builder = StateGraph(Host)
    builder.add_node("read", node)
    builder.add_node("more", lambda state: {"document": state["document"] + "x", "rounds": 1})
    builder.add_edge(START, "read")
    builder.add_conditional_edges(
        "read", lambda state: "more" if state.get("rounds", 0) < 2 else "__end__"
    )
    builder.add_edge("more", "read")
    graph = builder.compile(checkpointer=InMemorySaver())

    out = graph.invoke({"question": "?", "document": TEXT}, {"configurable": {"thread_id": "1"}})

    assert out["answer"] == read_through(TEXT + "xx")
