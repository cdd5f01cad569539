"""Print what a reading found, for people or for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from memagent_graph.cli.shown import shown
from memagent_graph.counted import counted
from memagent_graph.readers.base import Evidence

if TYPE_CHECKING:
    from memagent_graph.graph.state import ReadingOutput

_STOPPED = {
    "max_calls": "the budget of calls was spent",
    "deadline": "the time was up",
    "done": "the reader had enough",
}


def print_answer(output: ReadingOutput, *, as_json: bool, show_memory: bool) -> None:
    """Print the answer with its places, or the whole output; warnings go to stderr.

    Args:
        output: the graph's output.
        as_json: print nothing but the output, as one JSON document.
        show_memory: print the final memory too.
    """
    if as_json:
        print(shown(json.dumps(output, ensure_ascii=False, indent=2)))
    else:
        _print_for_people(output, show_memory=show_memory)
    sys.stdout.flush()  # a full disk shows here, where it can be said in one line
    for warning in () if as_json else output["warnings"]:
        print(shown(f"memagent: warning: {warning}", sys.stderr), file=sys.stderr)
    if why := _STOPPED.get(output["stopped"]):
        covered = f"memagent: {output['coverage']:.0%} of the document was read: {why}."
        print(covered, file=sys.stderr)


def _print_for_people(output: ReadingOutput, *, show_memory: bool) -> None:
    print(shown(output["answer"] or ""))
    places = dict.fromkeys(Evidence(**item).place for item in output["citations"])
    for place in places:
        print(shown(f"  at {place}"))
    if show_memory:
        _print_memory(output["memory"])
    usage = output["usage"]
    print(
        f"[{output['reader']}: {counted(usage['document_tokens'], 'token')} in "
        f"{counted(usage['calls'], 'call')} and {usage['seconds']:.1f} s]"
    )


def _print_memory(memory: str) -> None:
    if not sys.stdout.isatty():
        print(f"\nMemory:\n{memory}")
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console().print(
        Panel(Text(shown(memory)), title="memory", title_align="left", border_style="dim")
    )
