"""Parse what a reply says besides its notes: gates, verdicts of rounds, requests to look back.

A line counts only if it says nothing else: notes that merely contain such words are notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.prompts import NO_MEMORY, UNCHANGED
from memagent_graph.readers.base import Recall

if TYPE_CHECKING:
    from collections.abc import Collection


def take_verdict(reply: str) -> tuple[str, bool, str | None]:
    """Split the reply to a merge into notes, whether they are enough, and what else to look for.

    Only a first line that is a verdict and nothing else counts; without one they are enough.
    """
    verdict, _, notes = reply.partition("\n")
    if verdict.rstrip() == "ENOUGH":
        return notes.strip(), True, None
    wanted = verdict.removeprefix("LOOK FOR:").strip()
    if wanted and verdict.startswith("LOOK FOR:"):
        return notes.strip(), False, wanted
    return reply, True, None


def is_unchanged(reply: str) -> bool:
    """Whether a whole reply says only that the notes are unchanged."""
    return reply.strip(_AROUND_A_WORD).casefold() in {UNCHANGED, NO_MEMORY.casefold()}


def split_enough(reply: str) -> tuple[str, str | None]:
    """Split a reply into notes and, if its last line says that they are enough, the answer."""
    notes, _, last = reply.rstrip().rpartition("\n")
    last = last.strip(_AROUND_A_LINE)
    answer = last.removeprefix("ENOUGH:").lstrip(" \t*")
    return (notes.rstrip(), answer) if answer and last.startswith("ENOUGH:") else (reply, None)


def split_look_back(reply: str, memories: Collection[str]) -> tuple[str, Recall | None]:
    """Split a reply into notes and, if its last line asks to look back, the request.

    Args:
        reply: the model's reply.
        memories: names of the memories that it may ask for.
    """
    notes, _, last = reply.rstrip().rpartition("\n")
    asks, _, wanted = last.strip(_AROUND_A_LINE).partition(":")
    wanted, recall = wanted.strip(_AROUND_A_LINE), None
    if asks == "LOOK BACK" and wanted:
        recall = Recall(wanted)
    elif asks == "LOOK BACK NOTES" and wanted.isdecimal() and len(wanted) <= _LONGEST_NUMBER:
        recall = Recall(earlier=int(wanted))
    elif asks == "LOOK BACK MEMORY" and wanted in memories:
        recall = Recall(memory=wanted)
    return (reply, None) if recall is None else (notes.rstrip(), recall)


_AROUND_A_LINE = ' \t*"'
"""Characters that models put around a line, or around what it asks for."""
_LONGEST_NUMBER = 9
_AROUND_A_WORD = " \t\n\r.*\"'`“”"
"""Characters that models put around a single word."""


def boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{...}`, braces balanced; without one, the text."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return text.strip()
    start += len("\\boxed{")
    depth = 1
    for offset, character in enumerate(text[start:]):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start : start + offset].strip()
    return text[start:].strip()
