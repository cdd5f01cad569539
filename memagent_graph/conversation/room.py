"""Drop the oldest lines of a conversation's memory that has no room for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import regex

from memagent_graph.counted import counted
from memagent_graph.graph.fold import Call, advance
from memagent_graph.readers.statements import statements
from memagent_graph.text.chunking import cut_at_sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Fold
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_DAY = regex.compile(r"\d{4}-\d\d-\d\d")
_ASKED_TWICE = 2
"""Calls of a chunk that was read whole and whose notes had to be written once more."""


async def fold_within(
    reading: Reading, fold: Fold, source: Source, *, config: RunnableConfig | None = None
) -> tuple[Fold, tuple[str, ...]]:
    """Fold a whole conversation into a memory, of which the oldest lines go if it has no room.

    Args:
        reading: the reader, its budgets, and by `cut` which lines go.
        fold: the fold, with the memory so far.
        source: the conversation.
        config: configuration of the run.

    Returns:
        The fold after it; and what had to give way, in words that quote nothing.
    """
    room = _Room(reading.cut)
    call = Call(replace(reading, cut=room.cut), config)
    was_cut, again, unfinished = fold["progress"]["cut"], 0, 0
    for chunk in reading.chunks(source):
        calls, dropped = fold["progress"]["calls"], room.dropped
        fold["progress"]["cut"] = False
        fold = await advance(call, fold, chunk)
        again += fold["progress"]["calls"] - calls == _ASKED_TWICE
        unfinished += fold["progress"]["cut"] and room.dropped == dropped
        was_cut |= fold["progress"]["cut"]
    fold["progress"]["cut"] = was_cut
    budget = f"its budget of {reading.config.memory_tokens} tokens"
    warnings = []
    if again:
        warnings.append(
            f"The memory was over {budget}, and the model was asked once more, for a shorter one."
        )
    if room.dropped:
        lines = counted(room.dropped, "line")
        warnings.append(
            f"The memory was over {budget}: {lines} of it, the oldest, had to go. Raise "
            "memory_tokens, or name a model that keeps to it."
        )
    if unfinished:
        warnings.append(
            "The model's reply was cut off, so that the end of the memory is missing. Raise "
            "memory_tokens, or max_tokens of the model."
        )
    return fold, tuple(warnings)


class _Room:
    """Cuts the memories of one conversation to their budget.

    Args:
        cut: how.

    Attributes:
        dropped: number of lines that were dropped.
    """

    def __init__(self, cut: Callable[[str, int, Tokenizer], str]) -> None:
        self.dropped = 0
        self._cut = cut

    def cut(self, text: str, tokens: int, tokenizer: Tokenizer) -> str:
        kept = self._cut(text, tokens, tokenizer)
        self.dropped += len(_pieces(text)) - len(_pieces(kept))
        return kept


def keep_newest(text: str, tokens: int, tokenizer: Tokenizer) -> str:
    """The newest lines of a memory that fit, in their order.

    A line is as old as the first day in it ("2026-03-05"), or else as the line above; of one day,
    the line below is the newer. A memory of one line is taken by its sentences. The newest line is
    cut at a sentence's end if it does not fit by itself.

    Args:
        text: the memory.
        tokens: longest memory, in tokens.
        tokenizer: counts them.
    """
    pieces = _pieces(text)
    if not pieces:
        return ""
    joint = "\n" if "\n" in text.strip() else " "
    order = _newest_first(pieces)
    kept, left = 0, tokens
    for index in order:
        left -= tokenizer.count(pieces[index] + joint)
        if left < 0:
            break
        kept += 1
    while kept:  # counts of parts need not add up
        found = joint.join(pieces[index] for index in sorted(order[:kept]))
        if tokenizer.count(found) <= tokens:
            return found
        kept -= 1
    return cut_at_sentence(pieces[order[0]], tokens, tokenizer)


def _pieces(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) > 1 else [statement.text for statement in statements(text)]


def _newest_first(lines: list[str]) -> list[int]:
    days, day = [], ""
    for line in lines:
        found = _DAY.search(line)
        day = found[0] if found else day
        days.append(day)
    return sorted(range(len(lines)), key=lambda index: (days[index], index), reverse=True)
