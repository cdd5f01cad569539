"""python examples/cited_answers.py [QUESTION] [FOLDER].

For interfaces that show where an answer comes from: each source is a link where the terminal has
links (OSC 8), and file:line elsewhere. Without arguments it asks this project's documentation. Set
MEMAGENT_MODEL (openai:gpt-4o, say) for a model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from memagent_graph import create_memagent

if TYPE_CHECKING:
    from collections.abc import Mapping

QUESTION = "How many calls does a question cost that was asked before?"
DOCS = Path(__file__).parents[1] / "docs"


def printable(text: str) -> str:
    """The text without what a terminal would obey: documents are written by others."""
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


def link(place: Mapping[str, Any], folder: Path) -> Text:
    """Where a statement stands: a source is named from the folder's parent."""
    file = (folder.absolute().parent / place["source"]).as_uri()
    return Text(printable(f"{place['source']}:{place['line']}"), style=f"link {file}")


def answer(question: str, folder: Path) -> None:
    """Print the answer, and below it each statement that it rests on, by its place."""
    output = create_memagent().invoke({"question": question, "document": folder})
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(printable(output["answer"])))
    for number, place in enumerate(output["citations"], 1):
        said = printable(place["text"])
        console.print(Text.assemble(f"[{number}] ", link(place, folder), f"  {said}"))


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else QUESTION
    answer(asked, Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS)  # noqa: PLR2004 - the second argument
