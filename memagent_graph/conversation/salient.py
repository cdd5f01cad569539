"""The built-in reader of conversations: keeps what people tell of themselves."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.conversation.heard import goes_on
from memagent_graph.conversation.rendering import ASSISTANT, LINE, TOOL, USER
from memagent_graph.conversation.salience import replaces, salience, topics
from memagent_graph.conversation.spread import newest, serial, shares
from memagent_graph.errors import ConfigurationError
from memagent_graph.readers.base import Memory, Merge, Update
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.ranking import ranked
from memagent_graph.readers.statements import statements
from memagent_graph.text.terms import terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Step
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer

_VERSION = "salient-2"
_HEARSAY = 0.3
"""Weight of a statement of the assistant, relative to one of the person."""
_WANTED = 2
"""Weight of a statement with a word of `keep`, relative to others."""
_RECENT, _SERIAL = 0.3, 0.5
"""Shares of the memory for what was said last: at least by day, at most with a series of facts."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = regex.compile(rf"(?P<day>\d\d?) (?P<month>{'|'.join(_MONTHS)})(?: (?P<year>\d{{4}}))?")


class SalientReader(ExtractiveReader):
    """Keeps the statements of a conversation that tell most of the people in it.

    The memory is one statement a line, below the day on which it was told ("5 Mar 2026"); what
    others than the user said follows below their name ("@assistant"). `salience` says what is
    kept when there is no room for all, `replaces` which newer statement takes an older one's
    place. What the assistant said counts less, what tools were given and returned not at all.

    Args:
        config: the budgets, of which it needs `memory_tokens`.
        tokenizer: measures the memory; the built-in estimate by default.
        keep: statements with one of its telling words count double.
        never: statements with one of its telling words are left out.

    Raises:
        ConfigurationError: `never` has no such word.
    """

    def __init__(
        self,
        config: ReadingConfig | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        keep: str = "",
        never: str = "",
    ) -> None:
        super().__init__(config, tokenizer)
        self._wanted, self._banned = topics(keep), topics(never)
        if never.strip() and not self._banned:
            message = (
                f"The built-in reader leaves out statements by their words, and never={never!r} "
                "has no word to match: name some, or a model that understands it."
            )
            raise ConfigurationError(message)
        record = json.dumps([_VERSION, sorted(self._wanted), sorted(self._banned)])
        self.identity = self._identity(record)

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Keep the most telling statements of the memory and the chunk together."""
        known = list(read_facts(step.memory.text))
        kept = self._best(self._allowed(_current([*known, *_told(step.chunk)])))
        if kept == known or not kept:
            return Update(None)
        return Update(Memory(write_facts(kept)))

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Keep the most telling statements of all memories together, newer ones for older."""
        facts = [fact for memory in memories for fact in read_facts(memory.text)]
        return Merge(Memory(write_facts(self._best(self._allowed(_current(facts))))))

    def _allowed(self, facts: list[Fact]) -> list[Fact]:
        return [fact for fact in facts if self._banned.isdisjoint(terms(fact.text))]

    def _best(self, facts: list[Fact]) -> list[Fact]:
        """The most telling facts that fit into the memory, in its order."""
        costs = [self._counter.count(fact.text + "\n") for fact in facts]
        series = serial(facts)
        worth = [
            self._worth(fact, cost) * share
            for fact, cost, share in zip(facts, costs, shares(facts, series), strict=True)
        ]
        used = 0
        marks: set[str] = set()
        chosen: set[int] = set()

        def choose(index: int, most: float) -> None:
            nonlocal used
            new = {mark: text for mark, text in facts[index].marks.items() if mark not in marks}
            cost = costs[index] + sum(map(self._counter.count, new.values()))
            if index not in chosen and worth[index] > 0 and used + cost <= most:
                chosen.add(index)
                marks.update(new)
                used += cost

        for index in newest(facts, worth, series):
            choose(index, self.memory_tokens * (_SERIAL if series[index] else _RECENT))
        for index in ranked(worth):
            choose(index, self.memory_tokens)
        return [facts[index] for index in sorted(chosen)]

    def _worth(self, fact: Fact, tokens: int) -> float:
        heard = _HEARSAY if fact.speaker == ASSISTANT else 1
        wanted = 1 if self._wanted.isdisjoint(terms(fact.text)) else _WANTED
        return salience(fact.text, tokens) * heard * wanted


class Fact(NamedTuple):
    """A statement, with the day on which it was told, if known, and by whom."""

    day: str
    speaker: str
    text: str

    @property
    def marks(self) -> dict[str, str]:
        """The words above it, which it shares with others of the speaker, the year and the day."""
        by = self.speaker
        found = {} if by == USER else {by: f"@{by}\n"}
        if self.day:
            found |= {f"{by} {self.day[:4]}": f" {self.day[:4]}"}
            found |= {f"{by} {self.day}": _heading(self.day, before=self.day) + "\n"}
        return found


def read_facts(memory: str) -> Iterator[Fact]:
    """The facts of a memory; each line of one that a chat model has written is a fact."""
    day = year = ""
    speaker = USER
    for line in memory.splitlines():
        if told := _DAY.fullmatch(line):
            year = told["year"] or year
            day = f"{year}-{_MONTHS.index(told['month']) + 1:02}-{int(told['day']):02}"
        elif line.startswith("@"):
            speaker, day = line[1:], ""
        elif line.strip():
            yield Fact(day, speaker, line)


def _told(chunk: Chunk) -> Iterator[Fact]:
    """The statements of a rendered conversation; what tools were given and returned is left out."""
    begins = goes_on(chunk)
    begins_line = chunk.start == 0 or chunk.source.read(chunk.start - 1, 1) == "\n"
    for number, line in enumerate(chunk.text.splitlines()):
        if number > 0 or begins_line:  # else a person could write another's name where chunks end
            begins = LINE.match(line) or begins
        if begins is None or begins["speaker"].startswith(TOOL):
            continue
        said = line[begins.end() :] if begins.string is line else line
        for statement in statements(said.strip()):
            text = statement.text.lstrip("@ ")
            if not _DAY.fullmatch(text):  # it would pass for one of the memory's own lines
                yield Fact(begins["day"], begins["speaker"], text)


def _current(facts: list[Fact]) -> list[Fact]:
    """Facts by speaker and day, without those that a newer one repeats or replaces."""
    kept: list[Fact] = []
    for fact in sorted(facts, key=lambda fact: fact.day):
        words = _words(fact.text)
        same = [other.speaker for other in kept if _words(other.text) == words]
        if fact.speaker in same or (same and fact.speaker == ASSISTANT):  # it says what it heard
            continue
        kept = [
            other
            for other in kept
            if other.speaker != fact.speaker or not replaces(fact.text, other.text)
        ]
        kept.append(fact)
    return sorted(kept, key=lambda fact: (fact.speaker != USER, fact.speaker, fact.day))


@lru_cache(1 << 12)
def _words(statement: str) -> tuple[str, ...]:
    """Return the terms of a statement, which are equal if only case and punctuation differ."""
    return tuple(terms(statement)) or (statement,)


def write_facts(facts: Sequence[Fact]) -> str:
    """The reverse of `read_facts`."""
    lines: list[str] = []
    day, speaker = "", USER
    for fact in facts:
        if fact.speaker != speaker:
            speaker, day = fact.speaker, ""
            lines.append(f"@{speaker}")
        if fact.day != day:
            lines.append(_heading(fact.day, day))
            day = fact.day
        lines.append(fact.text)
    return "\n".join(lines)


def _heading(day: str, before: str = "") -> str:
    """Format a day as "5 Mar 2026", without the year if the day before has it too, to save room."""
    year, month, number = day.split("-")
    short = f"{int(number)} {_MONTHS[int(month) - 1]}"
    return short if before.startswith(year) else f"{short} {year}"
