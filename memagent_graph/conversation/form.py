"""Forms of a memory: notes, a profile, or facts, each with what folds and prompts need of it."""

from __future__ import annotations

import json
import logging
from bisect import bisect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memagent_graph.conversation.built_in import read_remarks, topics, write_remarks
from memagent_graph.conversation.profile import Fields, Past, read_entries, write_entries
from memagent_graph.conversation.profile_reader import PROFILE_QUESTION
from memagent_graph.conversation.prompt import first_day, newest_first, take_first
from memagent_graph.conversation.reader import STANDING_QUESTION, facts_of_schema
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import with_text
from memagent_graph.evidence.statements import drop_statements, statements
from memagent_graph.memory.version import LineSource
from memagent_graph.templates import plural
from memagent_graph.text.chunks import cut_at_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from memagent_graph.config import ReadingConfig
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
        left, gone = drop_statements(text, subject.issubset)
        return (write_remarks([*read_remarks(left)]), gone) if gone else (text, [])

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
