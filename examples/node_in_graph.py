"""python examples/node_in_graph.py.

For developers who have a LangGraph graph: one node reads a contract of any length, the nodes around
it stay as they were. Set MEMAGENT_MODEL (openai:gpt-4o, say) for a model.
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode

CONTRACT = (
    "The parties met in Oslo. " * 2000
    + "Either party may terminate this agreement with ninety days of notice. "
    + "The parties met again in Bergen. " * 2000
)


class Review(TypedDict, total=False):
    """The host's own state."""

    query: str
    contract: str
    finding: str
    letter: str


def write_letter(state: Review) -> Review:
    """A node that knows nothing of memories."""
    return {"letter": f"Dear client,\n{state['finding']}"}


builder = StateGraph(Review)
builder.add_node(
    "read", MemAgentNode(question="query", document="contract", answer="finding", name="read")
)
builder.add_node("write_letter", write_letter)
builder.add_edge(START, "read")
builder.add_edge("read", "write_letter")
builder.add_edge("write_letter", END)
graph = builder.compile()

if __name__ == "__main__":
    asked = {"query": "With how much notice may a party terminate?", "contract": CONTRACT}
    for mode, part in graph.stream(asked, stream_mode=["custom", "values"]):
        if mode == "custom" and part["event"] == "chunk":
            print(f"read {part['position']:,} of {part['length']:,} characters")
        elif mode == "values":
            result = part
    print(result["letter"])
