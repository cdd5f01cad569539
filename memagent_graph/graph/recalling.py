"""Look-back: find what an update asks for, and show it with the next step.

A fold searches the part of the document before its next chunk, read or skipped, except for what the
asking step was shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memagent_graph.config import MOST_RECALLED, RECALL_TOKENS
from memagent_graph.evidence.places import Recall, Recalled, locate
from memagent_graph.evidence.statements import statements
from memagent_graph.graph.records import Looks, Wanted, backed, looks_of, span_of
from memagent_graph.graph.skimming import move
from memagent_graph.text.chunks import cut_at_sentence
from memagent_graph.text.source import JoinedSource
from memagent_graph.text.terms import content_terms, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold, Progress
    from memagent_graph.graph.versions import Chain
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source

_MOST_READ = 16
"""Code points read of a span, per token of room."""
_LONGEST_PLACE = 64
"""Longest name of a shown passage or memory, in tokens."""


def may_look_back(reading: Reading, fold: Fold, chunk: Chunk) -> bool:
    """Whether the update of a chunk may ask to look back, since a later step can show it."""
    looks, most = looks_of(fold["progress"]), reading.config.recalls
    shown = looks["shown"] + (0 if looks["wanted"] is None else most)
    if not most or shown + most > MOST_RECALLED:
        return False
    end = span_of(fold["source"]).end
    goes_on = bool(chunk.text) and move(fold["progress"], chunk, end)[0] < end
    return goes_on or looks["after"] + _is_look(chunk) < most


def is_last_look(progress: Progress, end: int) -> bool:
    """Whether the next step comes after the last chunk, to show what was recalled."""
    return looks_of(progress)["wanted"] is not None and progress["position"] >= end


def _is_look(chunk: Chunk) -> bool:
    """Whether a step comes after the last chunk."""
    return not chunk.text


def look_on(
    reading: Reading,
    fold: Fold,
    chunk: Chunk,
    recall: Recall | None,
    recalled: Sequence[Recalled],
) -> Looks:
    """Return the state of look-back after a step.

    Args:
        reading: gives the limits.
        fold: the fold before the step.
        chunk: the chunk that was read.
        recall: the request of the update.
        recalled: passages and memories shown in the step.
    """
    before = looks_of(fold["progress"])
    wanted = None
    if recall is not None and may_look_back(reading, fold, chunk):
        recall = replace(recall, words=reading.short(recall.words))
        wanted = wanted_of(recall, [(chunk.start, chunk.end), *spans_of(recalled)])
    shown, after = before["shown"] + len(recalled), before["after"] + _is_look(chunk)
    return Looks(wanted=wanted, shown=shown, after=after)


def wanted_of(recall: Recall, shown: Sequence[tuple[int, int]]) -> Wanted | None:
    """Return the request that the next step fulfils, as plain values; None for none.

    Args:
        recall: the request of the update.
        shown: spans of the document shown to the update.
    """
    if recall.memory is not None:
        return Wanted(memory=recall.memory)
    if recall.earlier is not None:
        return Wanted(earlier=recall.earlier)
    if recall.span is not None:
        return Wanted(span=[*map(int, recall.span)])
    besides = [[start, end] for start, end in shown if start < end]
    return Wanted(words=recall.words, besides=besides) if recall.words else None


def spans_of(recalled: Sequence[Recalled]) -> list[tuple[int, int]]:
    """Return the spans of recalled passages in the document; memories have none."""
    return [
        (item.start, item.start + len(item.text)) for item in recalled if item.start is not None
    ]


def recall_of(wanted: Wanted | None) -> Recall | None:
    """Return the request of plain values, the inverse of `wanted_of`."""
    if wanted is None:
        return None
    start, end = wanted.get("span", (0, 0))
    return Recall(
        wanted.get("words", ""),
        (start, end) if "span" in wanted else None,
        wanted.get("earlier"),
        wanted.get("memory"),
    )


async def recall(
    reading: Reading, fold: Fold, chunk: Chunk, chain: Chain | None, seconds: float | None
) -> tuple[Recalled, ...]:
    """Find what the previous update asked for; () if nothing is found.

    Args:
        reading: gives budgets and indexes.
        fold: the fold before the chunk.
        chunk: the next chunk.
        chain: the fold's versions; None without a store.
        seconds: time limit in seconds; None for no limit.

    Raises:
        LateError: It took longer.
    """
    wanted = looks_of(fold["progress"])["wanted"]
    if wanted is None:
        return ()
    if "memory" in wanted or "earlier" in wanted:
        found = None if chain is None else await _memory(reading, chain, wanted)
        return () if found is None else (found,)
    if "span" in wanted:
        start, end = max(wanted["span"][0], 0), min(wanted["span"][1], chunk.start)
        return tuple(_passages(reading, chunk.source, [(start, end)], ""))
    words, sought = wanted["words"], {*content_terms(wanted["words"])}
    index = await reading.indexes.of(chunk.source, seconds)
    scores = index.scores(dict.fromkeys(sought, 1.0))
    found_spans: list[tuple[int, int]] = []
    for number in np.argsort(-scores, kind="stable").tolist():
        if scores[number] <= 0 or len(found_spans) >= reading.config.recalls:
            break
        start, end = index.span(number)
        for left in _without((start, min(end, chunk.start)), wanted["besides"]):
            text = chunk.source.read(left[0], left[1] - left[0])
            if not sought.isdisjoint(terms(text)):
                found_spans.append(left)
                break
    return tuple(_passages(reading, chunk.source, found_spans, words))


def _without(span: tuple[int, int], besides: Sequence[list[int]]) -> Iterator[tuple[int, int]]:
    """The parts of a span outside of other spans."""
    start, end = span
    for first, last in sorted(besides):
        if first < end and last > start:
            if start < first:
                yield start, first
            start = last
    if start < end:
        yield start, end


def _passages(
    reading: Reading, source: Source, spans: Sequence[tuple[int, int]], words: str
) -> Iterator[Recalled]:
    """The texts of spans, within the budget, from the statement that matches best."""
    counter, sought = reading.tokenizer, {*content_terms(words)}
    for start, end in spans:
        whole = source.read(start, max(min(end - start, _MOST_READ * RECALL_TOKENS), 0))
        begin = len(whole) - len(whole.lstrip())
        if not whole.strip():
            continue
        place = _short(reading, _place(source, start + begin))
        room = RECALL_TOKENS - counter.count(f"{place}\n")
        text = whole[begin:].rstrip()
        if counter.count(text) > room and words:
            at = max(statements(text), key=lambda one: len(sought & {*terms(one.text)})).start
            begin, text = begin + at, text[at:]
        yield Recalled(cut_at_sentence(text, room, counter), place, start + begin)


def _place(source: Source, start: int) -> str:
    """A place for the model; without the name of a single document, which may be a path."""
    at = locate("", source, start, start)
    if isinstance(source, JoinedSource):
        return at.place
    return f"line {at.line}" if at.page is None else f"page {at.page}"


async def _memory(reading: Reading, chain: Chain, wanted: Wanted) -> Recalled | None:
    """An earlier memory of the reading, or another memory that it may see."""
    if "memory" in wanted:
        name = wanted["memory"]
        if name not in reading.config.recall_from:
            return None
        version, place = await chain.named(name), f'notes "{name}"'
    else:
        version = await chain.earlier(wanted["earlier"])
        place = "" if version is None else f"your notes after section {version.step}"
    if version is None or not version.text.strip():
        return None
    place, counter = _short(reading, place), reading.tokenizer
    room = reading.config.recalls * RECALL_TOKENS - counter.count(f"{place}\n")
    text = cut_at_sentence(version.text, room, counter)
    other = version.id if "memory" in wanted else None
    return Recalled(text, place, memory=backed(text, version.memory), version=other)


def _short(reading: Reading, place: str) -> str:
    return place[: reading.tokenizer.prefix(place, _LONGEST_PLACE)]
