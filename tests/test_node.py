from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from doubles import ChainReader, chain, numbered
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError

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


KEYS = {"question": "query", "document": "contract", "answer": "finding"}


@pytest.mark.parametrize("schema", [DictHost, DataclassHost, PydanticHost])
@pytest.mark.parametrize(
    "argument", ["question", "document", "answer", "memory", "evidence", "usage"]
)
async def test_a_key_that_the_state_has_not_got_is_named_with_its_keys_before_anything_is_read(
    schema, argument
):
    reader = ChainReader()
    node = MemAgentNode(reader, **{**KEYS, argument: "oops"}, config=SMALL)
    graph = host(schema, node=node)
    asked = {"query": "?", "contract": TEXT}
    keys = re.escape("'contract', 'finding', 'notes', 'query'")

    with pytest.raises(ConfigurationError, match=f"{argument}='oops'.*{keys}"):
        graph.invoke(asked)
    with pytest.raises(ConfigurationError, match=f"{argument}='oops'.*{keys}"):
        await graph.ainvoke(asked)

    assert reader.spans == []


def test_a_key_without_a_value_is_no_key_error_either():
    with pytest.raises(ConfigurationError, match=r"'contract'.*no value.*with a value: 'query'"):
        host().invoke({"query": "?"})


def test_a_key_that_send_left_out_is_named_with_those_that_were_sent():
    builder = StateGraph(DictHost)
    builder.add_node("read", MemAgentNode(ChainReader(), **KEYS))
    builder.add_conditional_edges(START, lambda _: [Send("read", {"it": "?"})], ["read"])

    with pytest.raises(ConfigurationError, match="question='query'.*with a value: 'it'"):
        builder.compile().invoke({"query": "?"})


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ({"oops": 1, "finding": "."}, "an update of 'oops'"),
        (Command(update={"oops": 1}), "an update of 'oops'"),
        ("only text", "str"),
    ],
)
def test_an_answer_that_a_function_does_not_return_for_the_state_is_in_the_error(made, wrong):
    node = MemAgentNode(ChainReader(), **{**KEYS, "answer": lambda _: made}, config=SMALL)

    with pytest.raises(ConfigurationError, match=wrong) as caught:
        host(node=node).invoke({"query": "?", "contract": TEXT})

    assert read_through() in str(caught.value)
    assert "'contract', 'finding', 'notes', 'query'" in str(caught.value)


class Named(TypedDict, total=False):
    talk: Annotated[list[AnyMessage], add_messages]
    document: str


class Thread(MessagesState, total=False):
    document: str


@pytest.mark.parametrize(("schema", "key"), [(Named, "talk"), (Thread, "messages")])
def test_a_question_is_taken_from_messages_and_the_answer_is_one_that_streams_once(schema, key):
    node = MemAgentNode(ChainReader(), question=key, answer=key, config=SMALL)
    builder = StateGraph(schema)
    builder.add_node("read", node)
    builder.add_edge(START, "read")
    graph = builder.compile()
    talk = [("human", "Who?"), ("ai", "Whom do you mean?"), ("human", "Ann?"), ("ai", "Well.")]

    *_, said = graph.invoke({key: talk, "document": TEXT})[key]
    streamed = list(graph.stream({key: talk, "document": TEXT}, stream_mode="messages"))
    questions = [
        event["question"]
        for event in graph.stream({key: talk, "document": TEXT}, stream_mode="custom")
        if event["event"] == "answer"
    ]

    assert isinstance(said, AIMessage)
    assert said.text == read_through()
    assert "".join(message.text for message, _ in streamed) == read_through()
    assert questions == ["Ann?"]


def test_text_that_is_the_name_of_a_file_is_read_as_text_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("contract.txt").write_text("Ann signed.")
    graph = host()

    with pytest.warns(UserWarning, match=r"Path\('contract.txt'\)"):
        out = graph.invoke({"query": "?", "contract": "contract.txt"})

    assert out["finding"] == chain("", "contract.txt")


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


@pytest.mark.parametrize("config", [SMALL, ReadingConfig(segments=2)])
async def test_two_nodes_of_one_graph_draw_with_all_their_steps(config):
    keys = {"question": "query", "document": "contract", "config": config}
    builder = StateGraph(DictHost)
    builder.add_node("one", MemAgentNode(answer="finding", **keys))
    builder.add_node("two", MemAgentNode(answer="notes", **keys))
    builder.add_edge(START, "one").add_edge("one", "two")
    graph = builder.compile()
    drawn = [graph.get_graph(xray=True), await graph.aget_graph(xray=True)]

    sync, from_async = (each.draw_mermaid() for each in drawn)

    assert sync == from_async
    assert sync.count("subgraph ") == 2
    for node in ("one", "two"):
        assert f"{node}:overwrite_memory" in drawn[0].nodes
        assert f"{node}:question/overwrite_memory" in drawn[0].nodes
    steps = create_memagent(config=config).get_graph(xray=True)
    assert "question/write_answer" in steps.draw_mermaid()
    assert {edge.target for edge in steps.edges} <= set(steps.nodes)


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "file"])
def test_send_reads_many_documents_at_once_and_each_goes_on_after_a_stop(kind, tmp_path):
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
            interrupt_before=["overwrite_memory"],
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


def test_the_answer_of_a_chat_has_its_citations_as_langchain_annotates_text(tmp_path):
    path = tmp_path / "lease.md"
    path.write_text(
        "# Lease\n\nIt rained.\n\nAnn Kestrel signed the lease.\n\nShe lives in Husum.\n"
    )
    read = MemAgentNode(
        "extractive", question="messages", document=lambda _: path, answer="messages"
    )
    graph = StateGraph(MessagesState).add_node("read", read).add_edge(START, "read").compile()

    said = graph.invoke({"messages": [HumanMessage("Who signed the lease?")]})["messages"][-1]
    unknown = graph.invoke({"messages": [HumanMessage("Quantum chromodynamics?")]})["messages"][-1]

    [block] = said.content_blocks
    [citation] = block["annotations"]
    assert said.text == block["text"] == "Ann Kestrel signed the lease."
    assert said.text[citation["start_index"] : citation["end_index"]] == citation["cited_text"]
    assert citation["type"] == "citation"
    assert (citation["title"], citation["url"]) == (str(path), path.as_uri())
    place = citation["extras"]
    assert path.read_text()[place["start"] : place["end"]] == citation["cited_text"]
    assert (place["line"], place["heading"]) == (5, "Lease")
    assert isinstance(unknown.content, str)
