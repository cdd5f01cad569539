"""python examples/research_digest.py [FOLDER].

For researchers with more papers than time: an agent node reads each paper at once with LangGraph's
`Send`, and the findings are gathered into one digest. Without a folder it makes up three papers.
Set MEMAGENT_MODEL (openai:gpt-4o, say) for a model.
"""

from __future__ import annotations

import operator
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode

QUESTION = "What is the main result of the experiment?"
FILLER = "Earlier work is discussed at length in the appendix. " * 700
RESULTS = {
    "lichen.txt": "The main result of the experiment is that lichen grows 2 mm a year.",
    "salt.txt": "The experiment has one main result: salt slows the rust by a third.",
    "moths.txt": "As the main result of the experiment, moths prefer blue lamps to red.",
}


class Digest(TypedDict, total=False):
    """Papers go in, findings come out of as many branches."""

    papers: list[Path]
    findings: Annotated[list[str], operator.add]


def fan_out(state: Digest) -> list[Send]:
    """A branch for each paper."""
    return [Send("read", {"question": QUESTION, "document": paper}) for paper in state["papers"]]


def finding(output: dict[str, Any]) -> dict[str, list[str]]:
    """What a branch adds to the digest."""
    names = dict.fromkeys(item["source"] for item in output["citations"])
    return {"findings": [f"{', '.join(names)}: {output['answer']}"]}


builder = StateGraph(Digest)
builder.add_node("read", MemAgentNode(answer=finding))
builder.add_conditional_edges(START, fan_out, ["read"])
graph = builder.compile()


def digest(folder: Path) -> None:
    """Print one line for each paper."""
    output = graph.invoke({"papers": sorted(folder.iterdir())})
    for line in sorted(output["findings"]):
        print(f"- {line}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        digest(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            for name, result in RESULTS.items():
                Path(place, name).write_text(f"{FILLER}{result} {FILLER}")
            digest(Path(place))
