"""python examples/ask_code.py [QUESTION] [FOLDER].

For developers who ask a code base: reads all of it, whatever its size, and names file and line.
Without arguments it asks the installed source of LangGraph. Set MEMAGENT_MODEL (openai:gpt-4o, say)
for a model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import langgraph.errors

from memagent_graph import create_memagent

QUESTION = "Which error is raised when the graph has exhausted the maximum number of steps?"


def ask(question: str, folder: Path) -> None:
    """Print the answer and where it stands."""
    output = create_memagent().invoke({"question": question, "document": folder})
    print(output["answer"])
    for item in output["citations"]:
        print(f"  at {item['source']}:{item['line']}")


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else QUESTION
    where = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(langgraph.errors.__file__).parent  # noqa: PLR2004 - the second argument
    ask(asked, where)
