"""Forms of a memory (notes, a profile, facts), and what of it has room beside passages."""

from __future__ import annotations

import json
import logging
from bisect import bisect, bisect_left
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeVar

import regex

from memagent_graph.conversation.built_in import Remark, read_remarks, topics, write_remarks
from memagent_graph.conversation.profile import Fields, Past, read_entries, write_entries
from memagent_graph.conversation.profile_reader import PROFILE_QUESTION
from memagent_graph.conversation.reader import STANDING_QUESTION, facts_of_schema
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import with_text
from memagent_graph.evidence.statements import drop_statements, instant, statements
from memagent_graph.memory.version import LineSource
from memagent_graph.templates import plural
from memagent_graph.text.chunks import cut_at_sentence
from memagent_graph.text.index import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.episodes import KeptMessage
    from memagent_graph.conversation.messages import ConversationSource
    from memagent_graph.conversation.profile import FieldValue
    from memagent_graph.evidence.places import Memory, Unsupported
    from memagent_graph.facts.rules import Facts
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import Tokenizer

    Head = MemoryVersion | None
    Told = Mapping[str, LineSource]
    Attested = tuple[tuple[LineSource, ...], tuple[Unsupported, ...]]
    Dropped = tuple[str, list[str]]

_NEAR = 0.25
"""Share of the budget above which only the facts near a message are shown beside passages."""

_MEMORY = 0.25
"""Share of the budget that the memory has if it needs it, however many passages there are."""
_LEAST = 8
"""Tokens that a passage with its speaker has, at least."""
_MOST_MISSED = 30
"""Passages in a row that are too long for the room that is left, until no more are tried."""
_GAP = " […] "
_BEARING = 0.5
"""Share of the room for lines which bear on the message; the newest have the rest."""
_DAY = regex.compile(r"\d{4}-\d\d-\d\d")

T = TypeVar("T")

_log = logging.getLogger(__name__)


def keep_newest(text: str, tokens: int, tokenizer: Tokenizer) -> str:
    """Return the newest lines of a memory that fit, in their order.

    A line is as old as the first day in it ("2026-03-05"), or else as the line above; of one day,
    the line below is the newer. A memory of one line is taken by its sentences. The newest line is
    cut at a sentence's end if it does not fit by itself.
    """
    pieces = split_memory(text)
    if not pieces:
        return ""
    joint = "\n" if "\n" in text.strip() else " "
    order = newest_first(map(first_day, pieces))

    def join(some: list[int]) -> str:
        return joint.join(pieces[index] for index in sorted(some))

    kept = take_first(order, lambda some: tokenizer.count(join(some)) <= tokens)
    return join(kept) if kept else cut_at_sentence(pieces[order[0]], tokens, tokenizer)


def split_memory(text: str) -> list[str]:
    """Return the pieces of a memory that are cut off whole: lines, or a line's sentences."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) > 1 else [statement.text for statement in statements(text)]


@lru_cache(maxsize=64)
def index_lines(memory: str) -> tuple[Sequence[Remark], Sequence[int], Index]:
    """Return facts, their numbers by day, and their index, made once for a memory."""
    facts = [*read_remarks(memory)]
    days = (fact.day or first_day(fact.text) for fact in facts)
    return facts, newest_first(days), Index.of(fact.text for fact in facts)


@lru_cache(maxsize=4096)
def count_line(count: Callable[[str], int], line: str) -> int:
    """Count the tokens of a line; a turn has many lines that the turn before had."""
    return count(line)


def choose_lines(memory: str, said: str, about: str, tokens: int, tokenizer: Tokenizer) -> str:
    """Facts that bear on a text, and the newest, in their order; none that is said already."""
    facts, newest, index = index_lines(memory)
    bearing = [found.number for found in index.find(about, len(facts))]
    chosen: dict[int, None] = {}
    used = 0
    for order, most in ((bearing, tokens * _BEARING), (newest, tokens)):
        for number in order:
            if number not in chosen and facts[number].text not in said:
                used += count_line(tokenizer.count, facts[number].text + "\n")
                if used > most:
                    break
                chosen[number] = None
    kept = take_first(
        [*chosen],
        lambda some: tokenizer.count(write_remarks([facts[i] for i in sorted(some)])) <= tokens,
    )
    return write_remarks([facts[index] for index in sorted(kept)])


def first_day(text: str) -> str:
    """Return the first day in a text, as "2026-03-05"; "" without one."""
    found = _DAY.search(text)
    return found[0] if found else ""


def newest_first(days: Iterable[str]) -> list[int]:
    """Return the numbers of lines by day, the newest first; "" is the day of the line before."""
    known, last = list[str](), ""
    for day in days:
        last = day or last
        known.append(last)
    return sorted(range(len(known)), key=lambda index: (known[index], index), reverse=True)


def take_first(some: list[T], fit: Callable[[list[T]], bool]) -> list[T]:
    """Return as many from the beginning as fit together: counts of parts need not add up."""
    if fit(some):
        return some
    least = bisect_left(range(1, len(some)), x=True, key=lambda count: not fit(some[:count]))
    return some[:least]


@dataclass(frozen=True, slots=True)
class MessagePassage:
    """A piece of a message, word for word; offsets are in code points of its text."""

    said: KeptMessage
    message: int = field(compare=False)
    start: int
    end: int

    @property
    def text(self) -> str:
        """The piece."""
        return self.said.text[self.start : self.end]


def choose_recalled(
    memory: str,
    found: Iterable[MessagePassage],
    about: str,
    tokens: int,
    tokenizer: Tokenizer,
    *,
    whole: bool = False,
) -> tuple[str, list[MessagePassage]]:
    """Share a budget between memory and passages, the best first; return what of both has room.

    The memory is whole with `whole`, or if the passages leave room for it. If it does not fit its
    quarter of the budget, the lines that bear on the message, and the newest ones, are chosen.
    """
    size = tokenizer.count(memory)
    least = size if whole else min(size, int(tokens * _MEMORY))
    chosen = _fit(found, tokens - least, tokenizer)
    room = tokens - tokenizer.count(write_passages(chosen))
    if size > room and found and not whole:
        said = "\n".join(" ".join(passage.text.split()) for passage in chosen)
        memory = choose_lines(memory, said, about, room, tokenizer)
    return memory, chosen


def write_passages(passages: Iterable[MessagePassage]) -> str:
    """Passages by day, in the order in which they were said; "[…]" stands where words are left out.

    A further line of a message is indented, so that none can pass for another message.
    """
    lines: list[str] = []
    day = ""
    order = sorted(passages, key=lambda one: (instant(one.said.at), one.message, one.start))
    for _, group in groupby(order, key=lambda one: one.message):
        pieces = [*group]
        said = pieces[0].said
        if said.day != day:
            day = said.day
            lines.append(day)
        lines.append(f"{said.speaker}: {_join(pieces)}")
    return "\n".join(lines)


def _join(pieces: Sequence[MessagePassage]) -> str:
    text, end = "", 0
    for piece in pieces:
        text += piece.text if piece.start == end else _GAP + piece.text.lstrip()
        end = piece.end
    if end < len(pieces[0].said.text):
        text = text.rstrip() + _GAP
    return "\n  ".join(filter(str.strip, text.strip().splitlines()))


def _fit(
    found: Iterable[MessagePassage], tokens: int, tokenizer: Tokenizer
) -> list[MessagePassage]:
    """Return as many of the best passages as there is room for."""
    chosen: list[MessagePassage] = []
    days: set[str] = set()
    left, missed = tokens, 0
    for passage in found:
        day = "" if passage.said.day in days else f"{passage.said.day}\n"
        cost = count_line(tokenizer.count, f"{day}{passage.said.speaker}: {_join([passage])}\n")
        fits = cost <= left
        missed = 0 if fits else missed + 1
        if fits:
            chosen.append(passage)
            days.add(passage.said.day)
            left -= cost
        if left < _LEAST or missed > _MOST_MISSED:
            break
    return take_first(chosen, lambda some: tokenizer.count(write_passages(some)) <= tokens)


class NotesForm:
    """The form of a memory that is a text, and what other forms do in their own way.

    `fields` and `facts` are the schema for a reader.
    """

    question = STANDING_QUESTION
    fields: Fields[Any] | None = None
    facts: Facts | None = None
    cut = staticmethod(keep_newest)

    def parse(self, text: str) -> Any:
        """Return what a memory holds, for an application."""
        return text

    def render(self, text: str) -> str:
        """Return a memory for a model."""
        return text

    def choose_near(self, text: str, about: str, tokens: int, counter: Tokenizer) -> str:
        """Return what of a rendered memory may stand beside passages about a message."""
        return text

    def make_room(self, config: ReadingConfig, reader: Reader, counter: Tokenizer) -> ReadingConfig:
        """Return budgets with room for the schema, which each prompt has."""
        return config

    def find_topics(self, subject: str) -> frozenset[str]:
        """Return the words of a subject to forget; `ConfigurationError` if none is specific."""
        if wanted := topics(subject):
            return wanted
        message = f"Name the subject to forget by specific words; {subject!r} has none."
        raise ConfigurationError(message)

    def drop(self, text: str, subject: frozenset[str]) -> Dropped:
        """Return a memory without statements about a subject, and these."""
        kept, gone = list[Remark](), list[str]()
        for (day, speaker), group in groupby(read_remarks(text), lambda one: one[:2]):
            parts = [drop_statements(one.text, subject.issubset) for one in group]
            lines = "\n".join(left for left, _ in parts)
            lines, went = drop_statements(lines, subject.issubset)  # what stands in several
            gone += [*chain.from_iterable(dropped for _, dropped in parts), *went]
            kept += [Remark(day, speaker, one) for one in lines.splitlines() if one.strip()]
        return (write_remarks(kept), gone) if gone else (text, [])

    def drop_said(self, words: Sequence[str], left: Sequence[str], text: str) -> Dropped:
        """Return a memory without what stands in some messages, and in none of others; and that.

        It is for notes: the values of a profile are no sentences.
        """
        mine, others = ("\n".join(" ".join(one.split()) for one in of) for of in (words, left))
        known = [(one, " ".join(one.text.split())) for one in read_remarks(text)]
        gone = [one for one, said in known if said in mine and said not in others]
        kept = [one for one, _ in known if one not in gone]
        return (write_remarks(kept), [one.text for one in gone]) if gone else (text, [])

    def fits(self, line: str) -> bool:
        """Whether a line that has a source is of this form: those of notes have none."""
        return False

    def attest(self, head: Head, memory: Memory, said: ConversationSource, told: Told) -> Attested:
        """Return the sources of the lines after a fold, and what nothing supports.

        `told` are the sources that a reader of profiles has found.
        """
        return (), ()


class ProfileForm(NotesForm):
    """The form of a memory whose lines are the values of a schema's fields."""

    question = PROFILE_QUESTION
    fields: Fields[Any]

    def __init__(self, schema: type[BaseModel], past: Past) -> None:
        self.fields, self._past, self._warned = Fields(schema), past, False

    def parse(self, text: str) -> Any:
        """Return the profile, without what does not fit, which is logged once."""
        entries, others = read_entries(text)
        profile, _, misfits = self.fields.fit(entries)
        if (misfits or others) and not self._warned:
            self._warned = True
            _log.warning(
                "Left out: %s of a memory for which %s has no place. `entries` and `history` "
                "have everything. (Logged once.)",
                plural(len(misfits) + len(others), "line"),
                self.fields.schema.__name__,
            )
        return profile

    def render(self, text: str) -> str:
        """Return a line for each entry that fits the schema."""
        return "\n".join(entry.shown for entry in self.fields.fit(read_entries(text)[0]).entries)

    def make_room(self, config: ReadingConfig, reader: Reader, counter: Tokenizer) -> ReadingConfig:
        """Return budgets whose chunks leave room for the schema."""
        schema = counter.count(json.dumps(self.fields.changes, ensure_ascii=False))
        if 2 * schema > config.chunk_tokens:
            message = (
                f"The schema of {self.fields.schema.__name__} has {schema} tokens, which is more "
                f"than half of chunk_tokens ({config.chunk_tokens}): raise that, or leave out "
                "fields."
            )
            raise ConfigurationError(message)
        return config.model_copy(update={"chunk_tokens": config.chunk_tokens - schema})

    def cut(self, text: str, tokens: int, tokenizer: Tokenizer) -> str:
        """Return the entries that have room: at first those go that the schema lacks, then items.

        Of each kind, the oldest goes first.
        """

        def stays(entry: FieldValue) -> tuple[bool, bool, str]:
            known = self.fields.by_path.get(entry.field)
            return known is not None, known is not None and not known.many, entry.day

        entries, _ = read_entries(text)
        while entries and tokenizer.count(write_entries(entries)) > tokens:
            entries.remove(min(entries, key=stays))
        return write_entries(entries)

    def find_topics(self, subject: str) -> frozenset[str]:
        """Raise `ConfigurationError`: a profile is no text."""
        message = "A profile has no statements: edit its fields, or forget the user."
        raise ConfigurationError(message)

    def fits(self, line: str) -> bool:
        """Whether a line is an entry."""
        return bool(read_entries(line)[0])

    def attest(self, head: Head, memory: Memory, said: ConversationSource, told: Told) -> Attested:
        """Return the sources of the entries, and of earlier ones."""
        return self._past.attest(told.values(), memory.text, said.lines[-1].at), ()


class FactsForm(NotesForm):
    """The form of a memory whose lines are facts."""

    facts: Facts

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def choose_near(self, text: str, about: str, tokens: int, counter: Tokenizer) -> str:
        """Return the facts near a message, within a share of the budget."""
        from memagent_graph.facts.graph import find_lines_near

        return find_lines_near(text, about, int(_NEAR * tokens), counter)

    def make_room(self, config: ReadingConfig, reader: Reader, counter: Tokenizer) -> ReadingConfig:
        """Return budgets with room for the words of the reader's prompt."""
        from memagent_graph.facts.reader import with_room

        return with_room(config, reader)

    def cut(self, text: str, tokens: int, tokenizer: Tokenizer) -> str:
        """Return the facts that have room."""
        from memagent_graph.facts.reader import cut_facts

        return cut_facts(text, tokens, tokenizer)

    def drop(self, text: str, subject: frozenset[str]) -> Dropped:
        """Return a memory without the lines about a subject, and these."""
        from memagent_graph.facts.record import drop_facts

        return drop_facts(text, subject)

    def fits(self, line: str) -> bool:
        """Whether a line is no entry of a profile."""
        return not read_entries(line)[0]

    def attest(self, head: Head, memory: Memory, said: ConversationSource, told: Told) -> Attested:
        """Return the sources of facts, also of those that a fold changed, and marks of lines."""
        from memagent_graph.facts.record import facts_of, read_fact

        starts, found = [one.start for one in said.lines], []
        before = () if head is None else head.told
        known = {fact.triple: item for item in before if (fact := read_fact(item.line))}
        for fact in facts_of(memory):
            source = known.get(fact.triple)
            if fact.evidence:
                line = said.lines[max(0, bisect(starts, fact.evidence[-1].start) - 1)]
                source = LineSource(fact.line, line.message, said.name, line.at)
            if source is not None:
                found.append(replace(source, line=fact.line, until=""))
        marks = () if head is None else with_text(memory.text, head.memory).unsupported
        return (*found,), (*dict.fromkeys((*marks, *memory.unsupported)),)


def form_of(schema: Any, past: Past) -> NotesForm:
    """Return the form of a schema: `str`, a pydantic model, or facts."""
    if facts := facts_of_schema(schema):
        return FactsForm(facts)
    return NotesForm() if schema is str else ProfileForm(schema, past)
