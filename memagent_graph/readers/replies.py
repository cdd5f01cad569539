"""Parse what a reply says besides its notes: gates, verdicts of rounds, requests to look back.

A line counts only if it says nothing else: notes that merely contain such words are notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import regex

from memagent_graph.evidence.places import Recall
from memagent_graph.prompts import NO_MEMORY, UNCHANGED

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


def find_boxed(text: str) -> str:
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


_LONGEST = 400
"""Code points above which an answer is taken to hold one."""

_NOTES = (
    r"(?:notes?|text|document|passages?|context|memory|sections?|information|sources?|material)"
)
_TOLD = (
    r"(?:provided?|given|mention\w*|stated?|specif\w+|found|contain\w*|said|say|hold|held|included?"
    r"|available|known|determin\w+|answer\w*|indicat\w+|reveal\w*|disclos\w+|giv\w+|tell|told|list\w*"
    r"|present|recorded|noted|clear)"
)
_DENIAL = regex.compile(
    rf"""
    ^\W*(?:unknown|unclear|unanswerable|not\s+{_TOLD}|no\s+(?:answer|information|data|mention)
      |none\s+(?:found|given|mentioned)|n/a|insufficient|undetermined|nothing\s+{_TOLD})\b
    |\b{_NOTES}\b[^.!?]{{0,60}}\b(?:do(?:es)?\s+not|don['’]t|doesn['’]t|did\s+not|didn['’]t
      |(?:has|have|had|is|are|was|were)\s+no[tn]?e?|hasn['’]t|lacks?)\b
    |\bnot\s+(?:explicitly\s+|directly\s+|specifically\s+|been\s+)*{_TOLD}\b
      (?:\s+\w+){{0,3}}\s+(?:in|by|from|within)\s+(?:the|my|these|any|our)\s+{_NOTES}\b
    |\b(?:can\s*not|can['’]t|could\s+not|couldn['’]t|unable\s+to|impossible\s+to)\s+(?:be\s+)?
      (?:determin\w+|answer\w*|find|found|tell|say|identif\w+|infer\w*|know|establish\w*)\b
    |\b(?:there\s+is|i\s+have|i\s+found|i\s+find|contains?|provides?|holds?)\s+(?:no|not\s+enough
      |insufficient)\s+(?:\w+\s+){{0,2}}(?:answer|information|mention|data|details?|evidence)\b
    |\bi\s+(?:do\s+not|don['’]t)\s+know\b
    |未提及|没有提[及到]|未提到|未提供|没有提供|没有给出|未给出|无法(?:确定|回答|得知|判断|找到|知道)
    |不(?:知道|清楚|确定|详)|未知|没有(?:找到|相关|答案|记载|说明|关于)|找不到|并未|无相关|无从得知
    """,
    regex.IGNORECASE | regex.VERBOSE,
)


def says_not_found(answer: str) -> bool:
    """Whether an answer says, in English or Chinese, that the answer is not known.

    This is a rule over words: a short answer that says what the notes lack counts too.
    """
    answer = answer.strip()
    return not answer or (len(answer) <= _LONGEST and _DENIAL.search(answer) is not None)
