"""How much of a document a question needs, and its passages: found by words, without a model.

The skim asks before it skips, and `how="auto"` before it searches. Rules for English and Chinese
tell one place from several that all matter, and err towards reading more.

A skim passes over chunks without any: they are recorded in the fold, and are read after all if the
answer is not found. An answer is shown those on which the notes rest and the best ones for the
question and the notes, by turns, as far as there is room; a model sees them in the document's
order.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import isawaitable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import regex

from memagent_graph.config import LEXICAL, PART_TOKENS, is_decision_model
from memagent_graph.evidence.places import locate
from memagent_graph.evidence.support import choose, read_around
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import has_room, merge_spans
from memagent_graph.models.failures import model_error
from memagent_graph.templates import late
from memagent_graph.text.chunks import Chunk, table_header
from memagent_graph.text.index import Index, aopen_index, find_highest
from memagent_graph.text.source import JoinedSource
from memagent_graph.text.terms import content_terms, names, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Evidence, Memory
    from memagent_graph.graph.reading import Advance, FoldStep, Reading
    from memagent_graph.text.source import Source

# Chosen on questions of NQ, XQuAD and HotpotQA other than those in docs/benchmarks.md.
_PASSAGES = 12
"""Number of best passages for the question whose chunks are read."""
_SHARE = 0.5
"""Share of the best passage's score below which a passage is left out."""
_LINES = 4
"""Number of best lines of the memory whose names are searched for as well."""
_FOCUS = 4
"""Power with which a name's weight falls with the score of its line."""
_LED = 6
"""Number of best passages for question and names together whose chunks are read."""
_LED_SHARE = 0.7
"""Share of the best score for the question alone below which such a passage is left out."""
_LEAST = 0.5
"""Least score of a function with which a chunk is read."""
_KEPT = 4
"""Number of documents whose indexes an agent keeps."""


class Skim(Layer):
    """Skip chunks that are not worth a call."""

    name = "skim"

    def __init__(self, config: ReadingConfig) -> None:
        self._config = config
        self._known: dict[str, Lexical] = {}

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Skip the chunk, or take the step."""
        if step.chunk.text and await self._is_skipped(step):
            return FoldUpdate(None, chunk="skipped")
        return await read(step)

    def settings(self) -> list[object]:
        """Return the version of the search, and the criterion's name."""
        return ["skim 1", self._config.skim_name]

    def depends_on_memory(self, question: str) -> bool:
        """Whether chunks may be skipped: the memory introduces names to look for."""
        return is_skimmed(self._config, question)

    async def _is_skipped(self, step: FoldStep) -> bool:
        progress, chunk = step.fold["progress"], step.chunk
        may = is_skimmed(self._config, step.question) and has_room(progress, chunk.start)
        if progress["again"] or not may:
            return False
        if self._config.skim != LEXICAL:
            return await _score(self._config.skim, step) < _LEAST
        search = await self._of(chunk.source, step.call.seconds_left())
        return not search.is_worth(step.question, step.memory.text, chunk)

    async def _of(self, source: Source, seconds: float | None) -> Lexical:
        """The search in a document; the latest are kept."""
        if (found := self._known.get(source.digest)) is None:
            found = self._known[source.digest] = Lexical(await aopen_index(source, seconds))
            while len(self._known) > _KEPT:
                self._known.pop(next(iter(self._known)), None)
        return found


async def _score(skim: Any, step: FoldStep) -> float:
    """Call a function of question, memory and chunk, or ask a decision model."""
    question, memory, chunk = step.question, step.memory.text, step.chunk.text
    if is_decision_model(skim):
        state = {"question": question, "notes": memory, "section": chunk}
        return await choose(skim, state, _HELPS, _HELPS_NOT)
    try:
        score = skim(question, memory, chunk)
        return float(await score if isawaitable(score) else score)
    except Exception as error:
        raise model_error(error) from error


_HELPS = "The section says something that helps to answer the question, or tells more of the notes."
_HELPS_NOT = "Nothing in the section bears on the question or on the notes."


class Lexical:
    """Searches for the words of the query, and for names that the memory has introduced."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._wanted = lru_cache(64)(self._look)
        self._of_query = lru_cache(16)(self._scores)  # 8 bytes a passage each

    def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk has a passage, or part of one, that is to be read."""
        first, last = self._index.at(chunk.start), self._index.at(chunk.end - 1)
        return any(first <= number <= last for number in self._wanted(query, memory))

    def _scores(self, query: str) -> NDArray[Any]:
        return self._index.scores(dict.fromkeys(content_terms(query), 1.0))

    def _look(self, query: str, memory: str) -> frozenset[int]:
        """Numbers of the passages to read."""
        scores = self._of_query(query)
        best = float(scores.max(initial=0))
        found = _best(scores, _PASSAGES, _SHARE * best)
        if led := leads(query, memory):
            together = scores + self._index.scores(led)
            found += _best(together, _LED, _LED_SHARE * best)
        return frozenset(found)


def is_skimmed(config: ReadingConfig, question: str) -> bool:
    """Return whether chunks may be skipped: not if a question needs the whole document."""
    return config.skim is not None and scope(question) != "all"


def _best(scores: NDArray[Any], most: int, least: float) -> list[int]:
    """The numbers of the highest scores, the highest first, down to the least."""
    found: list[int] = find_highest(scores, most).tolist()
    return [number for number in found if scores[number] > 0 and scores[number] >= least]


def leads(query: str, memory: str) -> dict[str, float]:
    """Return the terms of the names that lines of a memory introduce, with weights."""
    lines = [line for line in memory.splitlines() if line.strip()]
    known = set(content_terms(query))
    found: dict[str, float] = {}
    best = Index.of(lines).find(query, _LINES)
    for line in best:
        weight = (line.score / best[0].score) ** _FOCUS
        for name in names(lines[line.number]):
            for term in content_terms(name):
                if term not in known:
                    found[term] = max(found.get(term, 0.0), weight)
    return found


_SHOWN_SHARE = 0.35
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
    near = [{*terms(text)} for text in read_around(source, places, _AROUND)]
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
    introduced = leads(question, memory.text)
    noted = {
        number
        for item in memory.evidence
        if item.end <= source.length and source.locate(item.start).name == item.source
        for number in range(index.at(item.start), index.at(item.end - 1) + 1)
    }
    rests = sorted(noted, key=lambda number: (-scores[number], number))
    led = _best_shown(scores + index.scores(introduced)) if introduced else []
    for turn in zip_longest(_best_shown(scores), rests, led):
        yield from (number for number in turn if number is not None)


def _best_shown(scores: NDArray[Any]) -> list[int]:
    return _best(scores, _MOST, _SHOWN_SHARE * float(scores.max(initial=0)))


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


# --- How much a question needs

Extent = Literal["one", "some", "all"]
"""Part to be read: one place with the answer, several places that all matter, or everything."""


def scope(question: str) -> Extent:
    """Return how much of a document a question needs.

    Returns:
        "all" if it counts, lists, summarizes, or asks what is most frequent: nothing may be
        skipped. "some" if it asks for a number of something named, for the last or the greatest of
        several, or for a comparison: chunks without any of its words may be skipped, but the first
        find is not all. Otherwise "one".
    """
    text = question.strip()
    if _ALL.search(text):
        return "all"
    if count := _COUNT.search(text):
        start, end = count.span()  # whether it is of something named, which the text may state
        anchored = names_something(text[:start] + " " * (end - start) + text[end:])
        return "some" if anchored else "all"
    return "some" if _SOME.search(text) else "one"


def names_something(question: str) -> bool:
    """Return whether a question has a name, a number or a quotation, after its first word."""
    first = next((place for place, letter in enumerate(question) if letter.isalnum()), 0)
    return bool(_QUOTED.search(question) or _NAMED.search(question, first))


_ASK = (
    r"(?:what|which|who|find|name|give|show|identify|extract|collect|return|tell|write|get|report)"
)
_TEXT = r"(?:text|document|book|novel|story|list|file|files|corpus|report|conversation|article)"
_ALL = late(
    rf"""
    ^\W*(?:please\s+|can\s+you\s+|could\s+you\s+)?(?:list|enumerate|count|summari[sz]e)\b
    |\b(?:a|the|full|complete)\s+list\s+of\b | ^\W*list\s+of\b | \bmake\s+(?:me\s+)?a\s+list\b
    |\b{_ASK}\b[^.?!]{{0,30}}\b(?:all|every)\b(?!\s+(?:time|about|quiet|right|along|over)\b)
    |\ball\s+(?:of\s+)?(?:the|these|those|its|his|her|their|my|our|your|different)\b
    |\beach\s+of\s+(?:the|these|those)\b | \bfor\s+(?:each|every)\b
    |\bevery\s+(?:single\s+)?(?:one|time|place|mention|occurrence|instance|person|name)\b
    |\bhow\s+(?:many|much|often)\b[^.?!]{{0,80}}\b(?:in\s+total|altogether|overall)\b
    |\bhow\s+many\s+(?:times|different|distinct|unique|separate|of\s+(?:the|these|my|our|them))\b
    |\bhow\s+many\b[^.?!]{{0,80}}\bin\s+(?:this|the|these|our|my)\s+{_TEXT}\b
    |\bhow\s+(?:often|frequently)\b | \b(?:total|overall)\s+(?:number|count|amount|sum)\b
    |\bnumber\s+of\s+(?:times|different|distinct|unique|occurrences|mentions)\b
    |\b(?:most|least)[\s-]+(?:often|frequent\w*|common\w*|mentioned|repeated|used\s+words?)\b
    |\b(?:appear|occur|mention)\w*\s+(?:the\s+)?(?:most|least)\b | \bfrequenc(?:y|ies)\b
    |\bsummar(?:y|ies|i[sz]e|i[sz]ing)\b | \boverview\b
    |\bmain\s+(?:points?|themes?|ideas?|topics?|arguments?|events?)\b
    |\b(?:this|the)\s+{_TEXT}\s+(?:is\s+)?about\b
    |所有|全部|一共|总共|总计|合计|总数|列出|列举|列表|清单|每一[个位次条种项]|逐一|分别有哪
    |[几多][少]?次|多少种不同|统计|数一数|最常|最频繁|次数最|出现最多|频率|频次
    |总结|概括|概述|概要|摘要|归纳|主要内容|大意|中心思想
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
_COUNT = regex.compile(r"\bhow\s+many\b|\bnumber\s+of\b", regex.IGNORECASE)
_NAMED = regex.compile(
    r"(?!\G)(?<![.?!:]\s)\b\p{Lu}|(?<![\p{L}\p{M}'’-])\p{Lu}[\p{L}\p{M}'’-]*+\s++\p{Lu}"
)
"""A name: a capital inside a sentence, or two capitalized words in a row."""
_QUOTED = regex.compile(r"\d|[\"“「《][^\"”」》]")
"""A number, or an opening quotation mark with a word."""
_SOME = late(
    r"""
    \b(?:last|latest|newest|final(?:ly)?|most\s+recent(?:ly)?|current(?:ly)?|now|still|any\s+more)\b
    |\b(?:first|earliest|oldest|youngest|earlier|later|older|younger)\b
    |(?-i:\ball\b)|\b(?:both|each|every|several|various|who\s+else|what\s+else|others?|another|list)\b
    |\b(?:compare[ds]?|comparison|versus|vs|differ\w*|similar\w*|in\s+common|same)\b
    |\b\p{L}+(?:er|re|ss)\s+than\b | \bmore\b[^.?!]{0,60}\b(?:than|or)\b | ,[^,?]+\bor\b
    |\bmost\b|\bleast\b
    |\b(?:high|low|larg|small|bigg|great|fast|slow|long|short|old|young|b|wor|strong|weak|cheap|rich
      |poor|deep|tall|heav|earli|lat|clos|near|few)(?:i?est|st)\b
    |多少|几|哪些|最|比较|相比|对比|区别|不同|异同|相同|共同|更|都|各|分别|目前|现在|还有|依然|仍
    |谁先|先后|较
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
