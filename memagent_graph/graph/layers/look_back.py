"""Look-back: find what an update asks for, and show it with the next step.

A fold searches the part of the document before its next chunk, read or skipped, except for what the
asking step was shown.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypedDict

from memagent_graph.config import MOST_RECALLED, RECALL_TOKENS
from memagent_graph.evidence.places import Recall, Recalled, locate, with_text
from memagent_graph.evidence.statements import statements
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import move, spans_of
from memagent_graph.memory.version import ChunkRead
from memagent_graph.readers.replies import adds_anything
from memagent_graph.text.chunks import cut_at_sentence
from memagent_graph.text.source import JoinedSource, parts_with_offsets
from memagent_graph.text.terms import content_terms, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.reading import Advance, FoldStep, Reading
    from memagent_graph.graph.state import Fold, FoldVersions
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source


_MOST_READ = 16
"""Code points read of a span, per token of room."""
_MOST_VAIN = 4
"""Requests in a row without use after which look-back is switched off."""
_LONGEST_PLACE = 64
"""Longest name of a shown passage or memory, in tokens."""


class Looks(TypedDict, total=False):
    """The state of look-back.

    Attributes:
        more: the request that the next step fulfils, as the fields of a `Recall`. For it, the fold
            takes another step after the last chunk.
        besides: spans that the update was shown when it asked for words.
        shown: number of passages and memories shown so far.
        after: number of steps after the last chunk.
        vain: number of times in a row that the notes took nothing from what was shown.
    """

    more: list[Any]
    besides: list[list[int]]
    shown: int
    after: int
    vain: int


class LookBackLayer(Layer):
    """Show what the last update asked for, and let this one ask.

    Args:
        config: gives `recalls` and `recall_from`.
    """

    name = "look_back"

    def __init__(self, config: ReadingConfig) -> None:
        self._most, self._from = config.recalls, config.recall_from

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step with what was asked for; after the last chunk, only if it is found.

        Raises:
            LateError: Opening the document's index took longer than the time left.
        """
        looks, chunk = looks_of(step.fold), step.chunk
        recalled = await self._find(step, looks)
        shown, after, vain = looks.get("shown", 0), looks.get("after", 0), looks.get("vain", 0)
        if not (chunk.text or recalled):
            none = Looks(shown=shown, after=after)
            return FoldUpdate(None, chunk="left", layers={self.name: none})
        asks = self._may_ask(step, looks)
        update = await read(
            replace(step, recalled=recalled, look_back=asks, recall_from=self._from)
        )
        now = Looks(shown=shown + len(recalled), after=after + (not chunk.text))
        # A model that asks with each reply would write its request into the notes if it might not.
        heard = asks and vain < _MOST_VAIN
        if heard and update.recall is not None and not _ends(step, update):
            now |= _ask(update.recall, [(chunk.start, chunk.end), *spans_of(recalled)])
        if recalled and step.call.reading.reader.shortens and vain < _MOST_VAIN:
            vain = 0 if _took(step, update, recalled) else vain + 1
        if vain:
            now["vain"] = vain
        return replace(update, recalled=recalled, layers={**update.layers, self.name: now})

    def settings(self) -> list[object]:
        """Return the version of the search, and what can be asked for."""
        return ["recalls 1", self._most, *self._from]

    def depends_on_memory(self, question: str) -> bool:
        """Whether passages are shown again: always, if an update asks for them."""
        return True

    def join(self, states: Sequence[Looks]) -> Looks:
        """Return the state after a round: nothing is wanted."""
        return Looks(
            shown=sum(state.get("shown", 0) for state in states),
            after=max(state.get("after", 0) for state in states),  # for what is read after all
            vain=max(state.get("vain", 0) for state in states),
        )

    def restart(self, state: Looks) -> Looks:
        """Return the state without a request."""
        return Looks(shown=state.get("shown", 0), vain=state.get("vain", 0))

    def resume(self, version: MemoryVersion) -> Looks | None:
        """Return the state after the update of a stored version: its request is next."""
        made = version.made_by
        if not isinstance(made, ChunkRead) or made.recall is None:
            return None
        return _ask(made.recall, [version.span])

    def _may_ask(self, step: FoldStep, looks: Looks) -> bool:
        """Whether the update may ask, since a later step can show it."""
        shown = looks.get("shown", 0) + (self._most if "more" in looks else 0)
        if shown + self._most > MOST_RECALLED:
            return False
        end = step.fold["scope"]["end"]
        after = looks.get("after", 0) + (not step.chunk.text)
        return _position(step) < end or after < self._most

    async def _find(self, step: FoldStep, looks: Looks) -> tuple[Recalled, ...]:
        """Return what the last update asked for; () if nothing is found."""
        call, chunk = step.call, step.chunk
        reading, recall = call.reading, Recall(*looks.get("more", ()))
        if recall.memory is not None or recall.earlier is not None:
            found = None if call.chain is None else await _memory(step, call.chain, recall)
            return () if found is None else (found,)
        if recall.span is not None:
            start, end = max(recall.span[0], 0), min(recall.span[1], chunk.start)
            return _passages(reading, chunk, [(start, end)], "")
        words, sought = recall.words, {*content_terms(recall.words)}
        if not words:
            return ()
        from memagent_graph.text.index import aopen_index  # it takes a while to import numpy

        index = await aopen_index(chunk.source, call.seconds_left())
        scores = index.scores(dict.fromkeys(sought, 1.0))
        found_spans: list[tuple[int, int]] = []
        for number in (-scores).argsort(kind="stable").tolist():
            if scores[number] <= 0 or len(found_spans) >= self._most:
                break
            start, end = index.span(number)
            for left in _without((start, min(end, chunk.start)), looks["besides"]):
                text = chunk.source.read(left[0], left[1] - left[0])
                if not sought.isdisjoint(terms(text)):
                    found_spans.append(left)
                    break
        return _passages(reading, chunk, found_spans, words)


def looks_of(fold: Fold) -> Looks:
    """Return the state of a fold's look-back."""
    return cast("Looks", fold["layers"].get(LookBackLayer.name, Looks()))


def warn_of_looks(fold: Fold) -> list[str]:
    """Return a warning if look-back was switched off."""
    if looks_of(fold).get("vain", 0) < _MOST_VAIN:
        return []
    message = (
        f"The model asked to look back {_MOST_VAIN} times in a row and noted nothing of what it "
        "was shown: look-back was switched off. Leave recalls at 0 for this model."
    )
    return [message]


def _took(step: FoldStep, update: FoldUpdate, recalled: Sequence[Recalled]) -> bool:
    """Whether the notes have something new of what was shown again, and only there."""
    if update.memory is None:
        return False
    shown = "\n".join(item.text for item in recalled)
    known = f"{step.memory.text}\n{step.chunk.text}"
    return adds_anything(update.memory.text, known, shown)


def _position(step: FoldStep) -> int:
    """The position of the fold after the step."""
    progress, chunk = step.fold["progress"], step.chunk
    end = step.fold["scope"]["end"]
    return move(progress, chunk, end)[0] if chunk.text else progress["position"]


def _ends(step: FoldStep, update: FoldUpdate) -> bool:
    """Whether no step follows that could show anything."""
    most = step.fold["scope"]["calls"]
    spent = most is not None and step.fold["progress"]["calls"] + update.usage.calls >= most
    return update.done or (spent and _position(step) >= step.fold["scope"]["end"])


def _ask(recall: Recall, shown: Sequence[tuple[int, int]]) -> Looks:
    """The request that the next step fulfils, of an update that was shown these spans."""
    if recall == Recall():
        return Looks()
    looks = Looks(more=[*astuple(recall)])
    if recall.words:
        looks["besides"] = [[start, end] for start, end in shown if start < end]
    return looks


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
    reading: Reading, chunk: Chunk, spans: Sequence[tuple[int, int]], words: str
) -> tuple[Recalled, ...]:
    """The texts of spans before a chunk, and their pictures that have room beside the chunk's."""
    found = tuple(_read_spans(reading, chunk.source, spans, words))
    if not reading.config.pictures:
        return found
    from memagent_graph.pictures.sight import between, check_sight, within

    model, known = check_sight(getattr(reading.reader, "model", None)), [*chunk.pictures]
    seen = [between(parts_with_offsets(chunk.source, *span), *span) for span in spans_of(found)]
    room = within([*known, *chain.from_iterable(seen)], reading.config.pictures, model)
    return tuple(
        replace(item, pictures=tuple(one for one in own if one in room[len(known) :]))
        for item, own in zip(found, seen, strict=True)
    )


def _read_spans(
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


async def _memory(step: FoldStep, chain: FoldVersions, recall: Recall) -> Recalled | None:
    """An earlier memory of the reading, or another memory that it may see."""
    reading, version, place = step.call.reading, None, f'notes "{recall.memory}"'
    if recall.memory in reading.config.recall_from:
        version = await chain.find_named(recall.memory)
    elif recall.earlier is not None:
        version = await chain.find_earlier(step.fold, recall.earlier)
        place = "" if version is None else f"your notes after section {version.step}"
    if version is None or not version.text.strip():
        return None
    place, counter = _short(reading, place), reading.tokenizer
    room = reading.config.recalls * RECALL_TOKENS - counter.count(f"{place}\n")
    text = cut_at_sentence(version.text, room, counter)
    other = None if recall.memory is None else version.id
    return Recalled(text, place, memory=with_text(text, version.memory), version=other)


def _short(reading: Reading, place: str) -> str:
    return place[: reading.tokenizer.prefix(place, _LONGEST_PLACE)]
