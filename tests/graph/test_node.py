import operator
import re
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from fixed_readers import ChainReader, chain, numbered
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send
from pydantic import create_model
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, QuestionError

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(60)


def read_through(document: str = TEXT) -> str:
    agent = create_memagent(ChainReader(), config=SMALL)
    return agent.invoke({"question": "?", "document": document})["answer"]


KEYS = ("query", "contract", "finding", "notes")
DictHost = TypedDict("DictHost", dict.fromkeys(KEYS, str), total=False)
DataclassHost = make_dataclass("DataclassHost", [(key, str, "") for key in KEYS])
PydanticHost = create_model("PydanticHost", **dict.fromkeys(KEYS, (str, "")))
NAMES = {"question": "query", "document": "contract", "answer": "finding"}
ASKED = {"query": "?", "contract": TEXT}
THREAD = {"configurable": {"thread_id": "1"}}


def reading(reader=None, **options):
    """A node that reads with small chunks, from and into the keys of the hosts above."""
    return MemAgentNode(reader or ChainReader(), config=SMALL, **NAMES | options)


def host(schema=DictHost, *, node=None, **compile_options):
    node = node or reading(memory="notes", name="reading")
    builder = StateGraph(schema).add_node("read", node).add_edge(START, "read")
    return builder.compile(**compile_options)


def fanning_host(key, node, schema):
    """A host that sends each of its documents or questions to a node of its own."""
    builder = StateGraph(schema).add_node("read", node)
    builder.add_conditional_edges(
        START, lambda state: [Send("read", {"it": it}) for it in state[key]], ["read"]
    )
    return builder


@pytest.mark.parametrize("schema", [DictHost, DataclassHost, PydanticHost])
async def test_a_node_maps_the_keys_of_any_kind_of_state_sync_and_async(schema):
    graph = host(schema)

    sync = graph.invoke(ASKED)
    from_async = await graph.ainvoke(ASKED)

    assert sync["finding"] == sync["notes"] == from_async["finding"] == read_through()


def test_a_checkpointer_without_a_thread_asks_for_one():
    saver, user = InMemorySaver(), {"configurable": {"user_id": "ann"}}
    with pytest.raises(ConfigurationError, match="thread_id"):
        host(node=reading(checkpointer=saver)).invoke(ASKED)
    with pytest.raises(ConfigurationError, match="thread_id"):
        create_memagent(checkpointer=saver).invoke({"question": "?", "document": TEXT}, user)
    for chosen in (True, False):  # the host's, and none
        assert host(node=reading(checkpointer=chosen)).invoke(ASKED)["finding"] == read_through()


async def test_a_node_is_tested_alone_as_langgraph_tests_nodes():
    node = host().nodes["read"]

    assert node.invoke(ASKED)["finding"] == read_through()
    assert (await node.ainvoke(ASKED))["finding"] == read_through()


def test_values_are_taken_out_of_the_state_by_functions_too():
    node = reading(
        question=lambda state: state["query"].upper(),
        document=lambda state: state["contract"] + TEXT,
        answer=lambda output: {"finding": f"{output['reader']}: {output['answer']}"},
    )

    out = host(node=node).invoke(ASKED)

    assert out["finding"] == f"chain: {read_through(TEXT + TEXT)}"


@pytest.mark.parametrize("schema", [DictHost, DataclassHost, PydanticHost])
@pytest.mark.parametrize("name", ["question", "document", "answer", "memory", "evidence", "usage"])
async def test_a_key_that_the_state_lacks_is_named_with_its_keys_before_a_reading(schema, name):
    reader = ChainReader()
    graph = host(schema, node=reading(reader, **{name: "oops"}))
    keys = re.escape("'contract', 'finding', 'notes', 'query'")

    with pytest.raises(ConfigurationError, match=f"{name}='oops'.*{keys}"):
        graph.invoke(ASKED)
    with pytest.raises(ConfigurationError, match=f"{name}='oops'.*{keys}"):
        await graph.ainvoke(ASKED)

    assert reader.spans == []


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ({"oops": 1, "finding": "."}, "an update of 'oops'"),
        (Command(update={"oops": 1}), "an update of 'oops'"),
        ("only text", "str"),
    ],
)
def test_an_answer_that_a_function_does_not_return_for_the_state_is_in_the_error(made, wrong):
    with pytest.raises(ConfigurationError, match=wrong) as caught:
        host(node=reading(answer=lambda _: made)).invoke(ASKED)

    assert read_through() in str(caught.value)
    assert "'contract', 'finding', 'notes', 'query'" in str(caught.value)


class Named(TypedDict, total=False):
    talk: Annotated[list[AnyMessage], add_messages]
    document: str


class Thread(MessagesState, total=False):
    document: str


@pytest.mark.parametrize("said", [[], [AIMessage("Hello.")]])
def test_messages_without_one_of_a_human_are_refused_as_such(said):
    graph = host(Thread, node=reading(question="messages", document="document", answer="messages"))

    with pytest.raises(QuestionError, match="no human message"):
        graph.invoke({"messages": said, "document": TEXT})


def test_a_question_is_taken_from_messages_in_the_format_of_openai():
    node = reading(question=lambda state: [{"role": "user", "content": state["query"]}])

    assert host(node=node).invoke(ASKED)["finding"] == read_through()


@pytest.mark.parametrize(("schema", "key"), [(Named, "talk"), (Thread, "messages")])
def test_a_question_is_taken_from_messages_and_the_answer_is_one_that_streams_once(schema, key):
    graph = host(schema, node=reading(question=key, document="document", answer=key))
    talk = [("human", "Who?"), ("ai", "Whom do you mean?"), ("human", "Ann?"), ("ai", "Well.")]
    asked = {key: talk, "document": TEXT}

    *_, said = graph.invoke(asked)[key]
    streamed = [*graph.stream(asked, stream_mode="messages")]
    events = graph.stream(asked, stream_mode="custom")

    assert isinstance(said, AIMessage)
    assert said.text == read_through()
    assert "".join(message.text for message, _ in streamed) == read_through()
    assert [e["question"] for e in events if e["event"] == "answer"] == ["Ann?"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("https://example.com/lease.pdf", "nothing is downloaded"),
        ("contract.txt", '"path": "contract.txt"'),
    ],
)
def test_an_address_or_a_file_s_name_is_read_as_text_with_a_warning(
    text, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("contract.txt").write_text("Ann signed.")

    with pytest.warns(UserWarning, match=says):
        out = host().invoke({"query": "?", "contract": text})

    assert out["finding"] == chain("", text)


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_the_host_sees_each_event_once_with_and_without_subgraphs(subgraphs):
    graph, how = host(), {"stream_mode": "custom", "subgraphs": subgraphs}

    sync = [*graph.stream(ASKED, **how)]
    from_async = [part async for part in graph.astream(ASKED, **how)]

    for parts in (sync, from_async):
        events = [part[1] if subgraphs else part for part in parts]
        assert [event["event"] for event in events].count("opened") == 1
        steps = [event["chunk"] for event in events if event["event"] == "chunk"]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > 5


def test_the_host_draws_and_finds_the_reading_inside_the_node():
    graph = host()

    assert "overwrite_memory" in graph.get_graph(xray=True).draw_mermaid()
    assert [name for name, _ in graph.get_subgraphs()] == ["read"]


class Fanning(TypedDict, total=False):
    documents: list[Any]
    answers: Annotated[list[str], operator.add]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "file"])
def test_send_reads_many_documents_at_once_and_each_goes_on_after_a_stop(kind, tmp_path):
    texts = documents = [numbered(20 + 10 * number) for number in range(3)]
    if kind == "file":
        documents = [str(tmp_path / f"{number}.txt") for number in range(3)]
        for path, text in zip(documents, texts, strict=True):
            Path(path).write_text(text)
    node = reading(
        question=lambda task: "?",
        document=lambda task: Path(task["it"]) if kind == "file" else task["it"],
        answer=lambda output: {"answers": [output["answer"]]},
        interrupt_before=["overwrite_memory"],
    )
    file = str(tmp_path / "c.sqlite")
    with SqliteSaver.from_conn_string(file) as saver:
        graph = fanning_host("documents", node, Fanning).compile(checkpointer=saver)
        graph.invoke({"documents": documents}, THREAD)

    with SqliteSaver.from_conn_string(file) as saver:
        graph = fanning_host("documents", node, Fanning).compile(checkpointer=saver)
        first, *_ = graph.get_state(THREAD, subgraphs=True).tasks
        graph.update_state(first.state.config, {"memory": "edited"})
        out = graph.invoke(None, THREAD)
        while len(out.get("answers", [])) < 3:
            out = graph.invoke(None, THREAD)

    unedited = set(map(read_through, texts))
    assert len(set(out["answers"])) == 3
    assert len(unedited.intersection(out["answers"])) == 2


def test_the_answer_of_a_chat_has_its_citations_as_langchain_annotates_text(tmp_path):
    path = tmp_path / "lease.md"
    path.write_text("# Lease\n\nIt rained.\n\nAnn Kestrel signed the lease.\n\nShe is in Husum.\n")
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
