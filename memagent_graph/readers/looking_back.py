"""What the last line of a model's reply asks to be shown again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.readers.base import Recall

if TYPE_CHECKING:
    from collections.abc import Collection


def split_look_back(reply: str, memories: Collection[str]) -> tuple[str, Recall | None]:
    """A reply's notes, and what its last line asks for, if that is to look back.

    Args:
        reply: of the model.
        memories: names of those that it may ask for.
    """
    notes, _, last = reply.rstrip().rpartition("\n")
    asks, _, wanted = last.strip(_AROUND).partition(":")
    wanted, recall = wanted.strip(_AROUND), None
    if asks == "LOOK BACK" and wanted:
        recall = Recall(wanted)
    elif asks == "LOOK BACK NOTES" and wanted.isdecimal() and len(wanted) <= _LONGEST_NUMBER:
        recall = Recall(earlier=int(wanted))
    elif asks == "LOOK BACK MEMORY" and wanted in memories:
        recall = Recall(memory=wanted)
    return (reply, None) if recall is None else (notes.rstrip(), recall)


_AROUND = ' \t*"'
"""What models put around a line, or around what it asks for."""
_LONGEST_NUMBER = 9
