"""The passages of the document that an answer is shown beside the notes.

They are those on which the notes rest and the best ones for the question and the notes, by turns,
as far as there is room; a model sees them in the document's order.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from memagent_graph.config import PART_TOKENS
from memagent_graph.evidence.places import locate
from memagent_graph.graph.layers.skim import leads
from memagent_graph.graph.state import merge_spans
from memagent_graph.text.chunks import Chunk, table_header
from memagent_graph.text.index import aopen_index, find_highest
from memagent_graph.text.source import JoinedSource
from memagent_graph.text.terms import content_terms, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Evidence, Memory
    from memagent_graph.graph.reading import Reading
    from memagent_graph.text.index import Index
    from memagent_graph.text.source import Source

_SHARE = 0.35
"""Share of the best score below which a passage is not shown."""
_LONGEST_TOKEN = 8
"""Code points a token, on average, above which no text is counted."""
_AROUND = 200
"""Code points before and after the place of an answer that may speak of the question."""
_SPOKEN = 0.25
"""Share of a question's words, by their rarity, from which a text speaks of it."""
_MOST = 64
"""Most passages that are found for question and notes."""


async def find_passages(
    reading: Reading, source: Source, question: str, memory: Memory, seconds: float | None
) -> list[Chunk]:
    """Return the passages to show with an answer, in the document's order."""
    count = reading.tokenizer.count
    room = room_for_passages(reading.config, count(question), count(memory.text))
    if room < 1:
        return []
    if not memory.text and holds_whole(reading, source, question):
        return [Chunk(source.read(0, source.length), 0, source.length, 0, source)]
    index = await aopen_index(source, seconds)
    chosen: set[int] = set()
    for number in dict.fromkeys(_rank(index, source, question, memory)):
        start, end = index.span(number)
        text = source.read(start, end - start)
        room -= count(f"{_place_above(source, start, text)}{text}") + PART_TOKENS
        if room < 0:
            break
        chosen.add(number)
    return [*_join(chosen, index, source)]


async def speaks_of(
    question: str, places: Sequence[Evidence], source: Source, seconds: float | None
) -> bool:
    """Whether the text around one of these places has a share of a question's words.

    A word counts by its rarity in the document, so that those that it lacks count most.
    """
    index = await aopen_index(source, seconds)
    asked = {term: index.rarity(term) for term in content_terms(question)}
    starts = [(max(place.start - _AROUND, 0), place.end + _AROUND) for place in places]
    near = [{*terms(source.read(start, end - start))} for start, end in starts]
    spoken = [sum(asked[term] for term in asked.keys() & said) for said in near]
    return max(spoken, default=0.0) >= _SPOKEN * sum(asked.values())


def holds_whole(reading: Reading, source: Source, question: str = "") -> bool:
    """Whether the window holds the whole text beside a question."""
    count = reading.tokenizer.count
    room = room_for_passages(reading.config, count(question), 0)
    if not 0 < source.length <= _LONGEST_TOKEN * room:
        return False
    return count(source.read(0, source.length)) <= room


def room_for_passages(config: ReadingConfig, question: int, memory: int) -> int:
    """Return the tokens that passages may have beside an answer; 0 or less for none."""
    needed = config.template_tokens + question + memory + config.answer_tokens
    left = config.window_tokens - needed
    return left if config.answer_passages is None else min(left, config.answer_passages)


def _rank(index: Index, source: Source, question: str, memory: Memory) -> Iterator[int]:
    """Yield numbers of passages, of three lists by turns.

    They are the best for the question, those on which the notes rest, and the best for the question
    and the names that the notes have introduced.
    """
    scores = index.scores(dict.fromkeys(content_terms(question), 1.0))
    names = leads(question, memory.text)
    noted = {
        number
        for item in memory.evidence
        if item.end <= source.length and source.locate(item.start).name == item.source
        for number in range(index.at(item.start), index.at(item.end - 1) + 1)
    }
    rests = sorted(noted, key=lambda number: (-scores[number], number))
    led = _best(scores + index.scores(names)) if names else []
    for turn in zip_longest(_best(scores), rests, led):
        yield from (number for number in turn if number is not None)


def _best(scores: NDArray[Any]) -> list[int]:
    """The numbers of the highest scores, up to a gap."""
    found: list[int] = find_highest(scores, _MOST).tolist()
    return [number for number in found if scores[number] > _SHARE * scores.max()]


def _join(chosen: set[int], index: Index, source: Source) -> Iterator[Chunk]:
    """Yield the chosen passages in order, those that follow each other as one."""
    spans = [[*index.span(number)] for number in sorted(chosen)]
    for start, end in merge_spans(spans):
        text = source.read(start, end - start)
        yield Chunk(text, start, end, 0, source, _place_above(source, start, text))


def _place_above(source: Source, start: int, text: str) -> str:
    """The lines shown above a passage: the place in one of several files, the header of a table."""
    header = table_header(source, start, text)
    if not isinstance(source, JoinedSource):
        return header
    return f"{locate('', source, start, start).place}\n{header}"
