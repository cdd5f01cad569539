"""cd examples/langgraph_server && langgraph dev.

For teams with a LangGraph server: the reading graph is one of its assistants, and clients of any
language send a question and a text of any length. `pip install "langgraph-cli[inmem]"` brings the
command; set MEMAGENT_MODEL (openai:gpt-4o, say) for a model. In a langgraph.json of your own,
"memagent": "./graph.py:graph" serves it beside your graphs.

    client = langgraph_sdk.get_sync_client(url="http://127.0.0.1:2024")
    asked = {"question": "When does the vault open?", "document": Path("log.txt").read_text()}
    print(client.runs.wait(None, "memagent", input=asked)["answer"])

`stream_mode="custom"` yields an event for each chunk. The memory is kept in the server's own store,
so that asking again reads nothing.
"""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode
from memagent_graph.errors import SourceError


class Asked(TypedDict):
    """What a client sends."""

    question: str
    document: str


class Answered(TypedDict):
    """What a client gets; `evidence` is where the statements of `memory` stand in the text."""

    answer: str
    memory: str
    evidence: list[dict[str, Any]]
    usage: dict[str, Any]


class State(Asked, Answered):
    """Of the graph."""


def text(state: State) -> str:
    """The text of a client, who must not have the server open its files."""
    document = state["document"]
    if not isinstance(document, str):
        raise SourceError("Send the text itself: this server opens no files for its clients.")
    return document


builder = StateGraph(State, input_schema=Asked, output_schema=Answered)
builder.add_node(
    "read", MemAgentNode(document=text, memory="memory", evidence="evidence", usage="usage")
)
builder.add_edge(START, "read")
builder.add_edge("read", END)
graph = builder.compile(name="memagent")
