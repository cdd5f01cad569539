"""Whose memories are whose: readings meet in a store only where their namespaces are the same."""

import asyncio

import pytest
from fixed_readers import ChainReader, numbered
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from memagent_graph import (
    ConversationMemory,
    MemAgentNode,
    MemAgentRetriever,
    ReadingConfig,
    create_memagent,
    create_reading_tool,
    read_many,
)
from memagent_graph.errors import ConfigurationError, MemoryNotFoundError
from memagent_graph.memory.bank import MemoryBank

SMALL = ReadingConfig(chunk_tokens=50, segments=1)
TEXT = numbered(30)
ASKED = {"question": "What?", "document": TEXT}
ANN, BEN = ("ann", "memagent"), ("ben", "memagent")


class Host(TypedDict):
    question: str
    document: str
    answer: str


def graph(reader, **place):
    return create_memagent(reader, config=SMALL, **place), ASKED


def node(reader, **place):
    builder = StateGraph(Host).add_node("read", MemAgentNode(reader, config=SMALL, **place))
    return builder.add_edge(START, "read").compile(), ASKED


def node_in_the_host_s_store(reader, *, store, **place):
    graph, asked = node(reader, **place)
    return graph.builder.compile(store=store), asked


def tool(reader, **place):
    made = create_reading_tool(reader, sources={"text": TEXT}, config=SMALL, **place)
    return made, {"questions": ["What?"], "source": "text"}


def retriever(reader, **place):
    return MemAgentRetriever(corpus=TEXT, model=reader, config=SMALL, **place), "What?"


def batch(reader, **place):
    agent, asked = graph(reader, **place)

    def read(task):
        return [result.output for result in read_many(agent, [task])]

    async def aread(task):
        return [result.output async for result in read_many(agent, [task])]

    return RunnableLambda(read, aread), asked


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["sync", "async"])
@pytest.mark.parametrize("entry", [
    graph, node, node_in_the_host_s_store, tool, retriever, batch,
], ids=lambda f: f.__name__)  # fmt: skip
def test_two_namespaces_do_not_see_each_other_s_memories(entry, twin):
    store, spans = InMemoryStore(), []
    for namespace in (ANN, BEN, ANN):
        made, asked = entry(reader := ChainReader(), store=store, namespace=namespace)
        if twin == "sync":
            made.invoke(asked)
        else:
            asyncio.run(made.ainvoke(asked))
        spans.append(reader.spans)

    ann, ben, ann_again = spans
    assert len(ann) > 3
    assert (ben, ann_again) == (ann, [])
    assert {space[:2] for space in store.list_namespaces(limit=100)} == {ANN, BEN}


async def test_a_name_and_a_version_of_another_namespace_lead_to_nothing():
    store = InMemoryStore()
    ann, ben = (
        create_memagent(ChainReader(), config=SMALL, store=store, namespace=namespace)
        for namespace in (ANN, BEN)
    )
    read = await ann.ainvoke({**ASKED, "memory_name": "lease"})

    assert ann.invoke({"question": "Why?", "version": "lease"})["answer"] == read["memory"]
    for reference in ("lease", read["version"]):
        with pytest.raises(MemoryNotFoundError):
            await ben.ainvoke({"question": "Why?", "version": reference})
    assert [name for name, _ in MemoryBank(store, ANN).list()] == ["lease"]
    assert MemoryBank(store, BEN).list() == MemoryBank(store).list() == []


async def test_nor_do_the_conversations_of_two_namespaces():
    store, said = InMemoryStore(), [("human", "My sister Ada lives in Rue Morgue.")]
    ann, ben = (ConversationMemory(store=store, namespace=namespace) for namespace in (ANN, BEN))

    ann.save(said, user="eve", thread="1")
    assert "Ada" in ann.load("eve")
    assert await ben.aload("eve") == ben.load("eve") == ""
    await ben.asave(said, user="eve", thread="1")
    assert ben.forget("eve").items > 0
    assert "Ada" in await ann.aload("eve")


@pytest.mark.parametrize("namespace", [
    "ann", (), ("",), ("ann", ""), ("a.b",), ("a\0",), ("langgraph", "x"), (1,),
], ids=repr)  # fmt: skip
def test_a_namespace_that_langgraph_forbids_is_refused_before_the_first_call(namespace):
    for make in (create_memagent, ConversationMemory, MemAgentNode):
        with pytest.raises(ConfigurationError, match="such as"):
            make(namespace=namespace)
