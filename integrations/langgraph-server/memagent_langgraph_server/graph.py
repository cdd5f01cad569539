"""The graph that `langgraph dev` serves: a question and a text in, an answer out."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import NotRequired, Required, TypedDict

from memagent_graph import MemAgentNode
from memagent_graph.errors import SourceError


class Asked(TypedDict):
    """What a client sends.

    Attributes:
        question: what to read for.
        document: the text to read.
    """

    question: str
    document: str


class Answered(TypedDict):
    """What a client gets.

    Attributes:
        answer: to the question.
        memory: what the answer was made from.
        evidence: where its statements stand in the text.
        usage: calls, tokens and seconds.
    """

    answer: str
    memory: str
    evidence: list[dict[str, Any]]
    usage: dict[str, Any]


class _State(TypedDict):
    question: Required[str]
    document: Required[str]
    answer: NotRequired[str]
    memory: NotRequired[str]
    evidence: NotRequired[list[dict[str, Any]]]
    usage: NotRequired[dict[str, Any]]


def _text(state: dict[str, Any]) -> str:
    """The text of a client, who must not have the server open its files."""
    document = state["document"]
    if not isinstance(document, str):
        raise SourceError("Send the text itself: this server opens no files for its clients.")
    return document


builder = StateGraph(_State, input_schema=Asked, output_schema=Answered)
builder.add_node(
    "read", MemAgentNode(document=_text, memory="memory", evidence="evidence", usage="usage")
)
builder.add_edge(START, "read")
builder.add_edge("read", END)
graph = builder.compile(name="memagent")
