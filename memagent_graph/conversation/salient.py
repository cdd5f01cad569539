"""The built-in reader of conversations: keeps what people tell of themselves."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.conversation.messages import ASSISTANT, LINE, TOOL, USER
from memagent_graph.conversation.salience import replaces, salience
from memagent_graph.readers.base import Memory, Merge, Update
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.ranking import ranked
from memagent_graph.readers.statements import statements

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Step
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer

_VERSION = "salient-1"
_HEARSAY = 0.3
"""What a statement of the assistant counts against one of the person."""
_LOOK = 1 << 14
"""Code points that are looked at first for the beginning of a message; most are shorter."""
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
    """

    def __init__(
        self, config: ReadingConfig | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__(config, tokenizer)
        self.identity = self._identity(_VERSION)

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Keep the most telling statements of the memory and the chunk together."""
        known = list(_remembered(step.memory.text))
        kept = self._best(_current([*known, *_told(step.chunk)]))
        if kept == known or not kept:
            return Update(None)
        return Update(Memory(_written(kept)))

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Keep the most telling statements of all memories together, newer ones for older."""
        facts = [fact for memory in memories for fact in _remembered(memory.text)]
        return Merge(Memory(_written(self._best(_current(facts)))))

    def _best(self, facts: list[Fact]) -> list[Fact]:
        """The most telling facts that fit into the memory, in its order."""
        costs = [self._counter.count(fact.text + "\n") for fact in facts]
        worth = [
            salience(fact.text, cost) * (_HEARSAY if fact.speaker == ASSISTANT else 1)
            for fact, cost in zip(facts, costs, strict=True)
        ]
        left = self.memory_tokens
        marks: set[str] = set()
        chosen = []
        for index in ranked(worth):
            new = {mark: text for mark, text in facts[index].marks.items() if mark not in marks}
            cost = costs[index] + sum(map(self._counter.count, new.values()))
            if worth[index] > 0 and cost <= left:
                chosen.append(index)
                marks.update(new)
                left -= cost
        return [facts[index] for index in sorted(chosen)]


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


def _remembered(memory: str) -> Iterator[Fact]:
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
    begins = _begun(chunk)
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


def _begun(chunk: Chunk) -> re.Match[str] | None:
    """The beginning of the message that goes on in a chunk; it is looked for from the end."""
    size = _LOOK
    while True:
        start = max(0, chunk.start - size)
        text = chunk.source.read(start, chunk.start - start)
        # A window that begins within a line could take what is said there for a beginning.
        lines = 0 if start == 0 else text.find("\n") + 1 or len(text)
        found = deque(LINE.finditer(text, lines), maxlen=1)
        if found or start == 0:
            return found[0] if found else None
        size *= 2


def _current(facts: list[Fact]) -> list[Fact]:
    """Facts by speaker and day, without those that a newer one repeats or replaces."""
    kept: list[Fact] = []
    for fact in sorted(facts, key=lambda fact: fact.day):
        same = [other.speaker for other in kept if other.text == fact.text]
        if fact.speaker in same or (same and fact.speaker == ASSISTANT):  # it says what it heard
            continue
        kept = [
            other
            for other in kept
            if other.speaker != fact.speaker or not replaces(fact.text, other.text)
        ]
        kept.append(fact)
    return sorted(kept, key=lambda fact: (fact.speaker != USER, fact.speaker, fact.day))


def _written(facts: list[Fact]) -> str:
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
    """As "5 Mar 2026", without the year if the day before has it too: dates take room."""
    year, month, number = day.split("-")
    short = f"{int(number)} {_MONTHS[int(month) - 1]}"
    return short if before.startswith(year) else f"{short} {year}"
