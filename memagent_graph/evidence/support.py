"""What a statement or an answer rests on: its words, or what a function or decision model says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import regex
from langchain_core.runnables import Runnable

from memagent_graph.config import is_decision_model
from memagent_graph.errors import ConfigurationError, MemAgentError, ModelError
from memagent_graph.evidence.align import Aligned, AlignedNote, align
from memagent_graph.evidence.places import (
    LEAST_COVERED,
    Evidence,
    Match,
    Memory,
    PassageIndex,
    best_of,
    evidence_by_note,
    index_notes,
    is_bare,
    is_in_language,
    roots,
    scripts,
)
from memagent_graph.evidence.statements import leave_out, notes, passage_terms
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import figures, specific_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memagent_graph.evidence.places import NoteTerms
    from memagent_graph.text.source import Source

Verify = Callable[[str, str], float | Awaitable[float]] | Runnable[Any, Any]
"""A function (passage, statement) that returns the probability, 0 to 1, that the passage supports
the statement; or a decision model of LangChain."""

_SUPPORTED = 0.5
"""Least probability with which a statement counts as supported."""


class Verifier:
    """Calls a function for each statement, all at the same time; a synchronous one in threads.

    `name` is its name in fingerprints: the function's own, unless one is given.
    """

    def __init__(
        self, function: Callable[[str, str], float | Awaitable[float]], name: str | None = None
    ) -> None:
        own = f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"
        self.name = name or own
        self._function = function

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Return, for each (passage, statement), the probability of support, 0 to 1."""
        return await asyncio.gather(*(self._ask(*pair) for pair in pairs))

    async def _ask(self, passage: str, statement: str) -> float:
        try:
            given: Any = await asyncio.to_thread(self._function, passage, statement)
            given = await given if isawaitable(given) else given
        except MemAgentError:
            raise
        except Exception as error:
            message = f"The verify function failed for {statement[:80]!r}: {error}"
            raise ModelError(message) from error
        with suppress(TypeError, ValueError):
            if 0 <= (probability := float(given)) <= 1:
                return probability
        message = f"verify must return a probability from 0 to 1, not {given!r}."
        raise ConfigurationError(message)


def resolve_verifier(verify: Verify | None) -> Verifier | None:
    """Make a verifier from a function or a decision model; None stays None."""
    if verify is None:
        return None
    if is_decision_model(verify):
        name = f"decision {type(verify)} {getattr(verify, 'model', '')}"
        return Verifier(partial(_choose_support, verify), name)
    if callable(verify):
        return Verifier(verify)
    message = f"verify= takes a function or a decision model, not {verify!r}."
    raise ConfigurationError(message)


async def choose(model: Any, state: Mapping[str, str], chosen: str, other: str) -> float:
    """Return the probability, 0 to 1, that a decision model gives the first of two statements.

    Asked for a yes or no, many a model says yes to a statement and to its negation. The model is a
    `langchain_core.decisions.BaseDecisionModel`; the state has the texts that they are about.
    """
    from langchain_core.decisions import Choice

    which = "Which of the two statements is true?"
    asked = Choice(instructions=which, criteria={"first": chosen, "second": other})
    try:
        response = await model.ainvoke({"state": {**state}, "questions": {"which": asked}})
        return float(response.choices["which"].probabilities["first"])
    except Exception as error:
        message = f"The decision model failed: {error}"
        raise ModelError(message) from error


async def _choose_support(model: Any, passage: str, statement: str) -> float:
    chosen, other = (f"The passage {says}: {statement}" for says in ("says", "does not say"))
    return await choose(model, {"passage": passage}, chosen, other)


async def decide(aligned: Aligned, verifier: Verifier, question: str = "") -> Aligned:
    """Return the memory or answer, with statements that have a passage marked by the verifier.

    A question is put before a short answer to it, which states nothing by itself.
    """
    asked = [note for note in aligned.notes if note.passage]
    if not asked:
        return aligned
    stated = [(note.passage, _statement_for(note.text, question)) for note in asked]
    likely = dict(zip(asked, await verifier.probabilities(stated), strict=True))
    judged = []
    for note in aligned.notes:
        if note not in likely:
            judged.append(note)
        elif likely[note] >= _SUPPORTED:
            judged.append(replace(note, state="supported", missing=()))
        elif note.is_new:  # else the older note stays as it was
            judged.append(replace(note, state="unsupported"))
    return replace(aligned, notes=tuple(judged))


_SHORT = 3
"""Most words of an answer that states nothing without its question."""


def _statement_for(text: str, question: str) -> str:
    return f"{question} {text}" if question and len(specific_terms(text)) <= _SHORT else text


def align_answer(answer: str, memory: Memory, question: str) -> Aligned:
    """Align an answer with the memory that it was written from, as notes are with a chunk.

    A short answer that is a name has no sentence around it: its first word counts as one too. A
    small count needs no support if the question asks for one. What nothing supports in the memory,
    names and numbers or else whole statements, supports no answer.
    """
    known = leave_out(memory.text, {item.text for item in memory.unsupported if not item.missing})
    for item in memory.unsupported:
        bare = item.text
        for name in item.missing:
            bare = bare.replace(name, "")
        known = known.replace(item.text, bare)
    aligned = align(answer, Memory(), Chunk(known, 0, len(known), 0, TextSource(known)), question)
    found = [_as_answer(note, known, question) for note in aligned.notes]
    if not known.strip():
        found = [replace(note, state="unsupported", missing=()) for note in found]
    return replace(aligned, notes=tuple(found))


_COUNTS = regex.compile(r"\bhow many\b|\bnumber of\b|多少|几|幾", regex.IGNORECASE)
_SMALL = frozenset(map(str, range(2, 13)))
"""Counts that a reader can work out from what the memory lists."""
_NAME = regex.compile(
    r"\A[\s\"'*_(]*(?P<first>\p{Lu}[\p{L}\p{M}'’-]++)(?:\s+[\p{L}\p{M}\p{N}'’.-]++){0,3}[\s\"'*_).!]*\Z"
)


def _as_answer(note: AlignedNote, memory: str, question: str) -> AlignedNote:
    missing = note.missing
    if _COUNTS.search(question):
        missing = tuple(name for name in missing if not _is_small(name))
    elif not missing and note.state == "unknown" and (name := _NAME.match(note.text)):
        first, had = name["first"], {*specific_terms(memory), *specific_terms(question)}
        is_strange = had.isdisjoint(specific_terms(note.text))
        if is_strange and not is_bare(note.text) and scripts(memory) & scripts(first):
            missing = (first,)
    if missing == note.missing:
        return note
    return replace(note, missing=missing, state="unsupported" if missing else "unknown")


def _is_small(name: str) -> bool:
    return next((value in _SMALL for found in figures(name) for value in found.values), False)


def is_beside(answer: str, places: Sequence[Evidence], question: str, source: Source) -> bool:
    """Whether what an answer rests on stands where the text speaks of something else.

    Left alone are answers of yes or no, and texts in another language than the question. Without
    places in the source, an answer rests on none of it.
    """
    asked = roots(question)
    opening = answer.replace("，", " ").replace(",", " ").split(maxsplit=1)[:1]
    if len(asked) < _LEAST_ASKED or any(map(is_bare, opening)):
        return False
    first = places[0].start if places else source.length // 2
    if not is_in_language(question, source.read(max(0, first - _SAMPLE // 2), _SAMPLE)):
        return False
    spoken = [*map(roots, read_around(source, places, _NEARBY))]
    if any(roots(one.text).isdisjoint(said) for one, said in zip(places, spoken, strict=True)):
        return False  # of an earlier document
    return not places or max(len(asked & said) for said in spoken) < _SPOKEN * len(asked)


def read_around(source: Source, places: Sequence[Evidence], most: int) -> list[str]:
    """Return the text at each place, with up to so many code points before and after it."""
    starts = [max(0, place.start - most) for place in places]
    return [source.read(at, one.end + most - at) for at, one in zip(starts, places, strict=True)]


_LEAST_ASKED = 3
"""Least number of words of a question from which its subject is known."""
_NEARBY = 400
"""Code points before and after the place of a note that may speak of the question."""
_SAMPLE = 4000
"""Code points of the document by which its language is known."""
_SPOKEN = 0.25
"""Share of the question's words from which a text speaks of it. On Natural Questions with a model
of 1.5B, between a fifth and a third of the made-up answers and no right one are below it."""
_CITED = 4
"""Most notes that one sentence of an answer rests on."""
_LEAST_CITED = 0.1
"""Least share of the weight of a sentence that a further note must add."""


def cite(answer: str, memory: Memory, question: str = "") -> tuple[Evidence, ...]:
    """Return the evidence of the notes of a memory that an answer rests on, best first.

    The question decides between notes that match the answer equally well.
    """
    index = index_notes(memory.text)
    evidence = evidence_by_note(memory.evidence, index.items)
    asked = passage_terms(question)
    scores: dict[Evidence, float] = {}
    for note in notes(question if is_bare(answer) else answer):
        wanted = index.want(note, asked, asked)
        match = index.match(wanted, 1)
        places, covered = _add_notes(index, wanted, match)
        if covered < LEAST_COVERED:
            continue
        linked = _find_link(index, places, asked)
        if linked is not None and linked not in places:
            places.append(linked)
        for rank, number in enumerate(places, start=1):
            for item in evidence.get(number, ()):
                scores[item] = max(scores.get(item, 0), match.score / rank)
    return tuple(sorted(scores, key=lambda item: -scores[item]))


def _add_notes(index: PassageIndex, wanted: NoteTerms, match: Match) -> tuple[list[int], float]:
    """Return the notes that a sentence rests on, and the share of its weight that they have."""
    weights, places = wanted.weights, [*match.places]
    total = sum(weights.values()) or 1.0
    missing = {term: weight for term, weight in weights.items() if term not in match.terms}
    while missing and places and len(places) < _CITED:
        gains = index.add_up(missing)
        most = max(gains.values(), default=0)
        if most < _LEAST_CITED * total:
            break
        shared = {
            number: sum(weights.get(term, 0) for term in index.items[number].terms)
            for number, gain in gains.items()
            if gain == most
        }
        best = max(shared, key=lambda number: (shared[number], -number))
        places.append(best)
        missing = {term: missing[term] for term in missing.keys() - index.items[best].terms.keys()}
    return places, 1 - sum(missing.values()) / total


def _find_link(index: PassageIndex, places: Collection[int], asked: Collection[str]) -> int | None:
    """Return the note by which a question leads to the notes of its answer; None without one.

    "Where does the author live?" leads to "Ann lives in Husum." by "Ann wrote the book."
    """
    known = {term for number in places for term in index.items[number].terms}
    asked = [term for term in asked if term in index.postings]
    missing = {term: index.weight(term) for term in asked if term not in known}
    linking = known.difference(asked)
    gains = {
        number: gain
        for number, gain in index.add_up(missing).items()
        if not linking.isdisjoint(index.items[number].terms)
    }
    best = best_of(gains)
    return best if best is not None and gains[best] * 2 > sum(missing.values()) else None
