"""The statements and facts of a memory: its lines, an entity's neighbourhood, and conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.facts.graph import Entities, select_facts
from memagent_graph.facts.record import SAME_AS, facts_of, read_date, read_fact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memagent_graph.facts.record import Fact
    from memagent_graph.memory.version import MemoryVersion


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a line, with the numbers of its evidence; `missing` is what nothing accounts for."""

    text: str
    evidence: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    unsupported: bool = False


class Conflict(NamedTuple):
    """Facts of which a subject can have one, and of which two sources each name another."""

    subject: str
    relation: str
    facts: tuple[Fact, ...]


def list_conflicts(facts: Iterable[Fact]) -> list[Conflict]:
    """Return what is disputed, by subject and relation."""
    facts = [*facts]
    disputed = [fact for fact in facts if fact.disputed]
    groups = [[disputed[at] for at in group] for group in Entities(facts).group(disputed)]
    return [Conflict(found[0].subject, found[0].relation, (*found,)) for found in groups]


def is_facts(text: str) -> bool:
    """Whether a memory is one of facts: each line begins with the fields of one."""
    lines = text.splitlines()
    facts = map(read_fact, lines)
    read = [fact.line.split(" | ")[:3] if fact else None for fact in facts]
    return bool(lines) and read == [line.split(" | ")[:3] for line in lines]


def lines_of(version: MemoryVersion) -> list[list[Piece]]:
    """The lines of a memory, without those that are empty."""
    evidence: dict[str, list[int]] = {}
    for number, item in enumerate(version.memory.evidence):
        evidence.setdefault(item.text, []).append(number)
    marks = {item.text: item.missing for item in version.memory.unsupported}
    known = sorted({*evidence, *marks} - {""}, key=len, reverse=True)
    lines = []
    for line in version.text.splitlines():
        if not line.strip():
            continue
        found = [text for text in known if text in line]
        lines.append([_piece(text, evidence, marks) for text in _cut(line, found)])
    return lines


def _cut(line: str, texts: list[str]) -> list[str]:
    """A line in pieces of which some are these texts, the longest first."""
    pieces = [(line, False)]
    for text in texts:
        cut: list[tuple[str, bool]] = []
        for piece, known in pieces:
            first, *others = [piece] if known else piece.split(text)
            cut.append((first, known))
            for other in others:
                cut += [(text, True), (other, False)]
        pieces = cut
    return [piece for piece, _ in pieces if piece]


def _piece(text: str, evidence: dict[str, list[int]], marks: dict[str, tuple[str, ...]]) -> Piece:
    numbers = tuple(evidence.get(text, ()))
    return Piece(text, numbers, marks.get(text, ()), text in marks)


_MOST_ROWS = 60
"""Rows of a drawing; the table has all facts."""
_HOPS = 2
_INDENT, _HEIGHT, _BASELINE = 26, 26, 17
"""Steps of the drawing, in its units: of a hop, of a row, and of a row's text."""
_LONGEST = 46
"""Characters of a row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a drawing: a name, and the fact that connects it with the row above it.

    Attributes:
        name: the name.
        label: the fact without that name: "works at →"; "" for the entity itself.
        fact: the fact; None for the entity itself.
        x: left end of the text.
        y: baseline of the text.
        line: path from the row that it belongs to; "" for the entity itself.
    """

    name: str
    label: str
    fact: Fact | None
    x: int
    y: int
    line: str = ""

    @property
    def shown(self) -> str:
        """The name, cut to its room."""
        room = max(_LONGEST - len(self.short_label) - self.x // 8, 8)
        return self.name if len(self.name) <= room else f"{self.name[: room - 1]}…"

    @property
    def short_label(self) -> str:
        """The label, cut to half of the row."""
        half = _LONGEST // 2
        return self.label if len(self.label) <= half else f"…{self.label[-half:]}"


@dataclass(frozen=True, slots=True)
class FactsPage:
    """The facts of a memory, as a page shows them.

    Attributes:
        about: name of the entity that is drawn; "" if there is none.
        names: all names, those with most facts first.
        rows: the drawing.
        height: height of the drawing, in its units.
        known: the facts that are listed, with the numbers of their evidence in the version.
        conflicts: what is disputed.
        at: date at which the facts hold, as it was read; "" for all of them.
        is_date: whether what was asked for is a date.
    """

    about: str
    names: Sequence[str]
    rows: Sequence[Row]
    height: int
    known: Sequence[tuple[Fact, list[int]]]
    conflicts: Sequence[Conflict]
    at: str
    is_date: bool


def facts_page(version: MemoryVersion, about: str = "", at: str = "") -> FactsPage:
    """Return what a page shows: the facts at a date, or all of them for "" and for what is none."""
    everything, asked = facts_of(version), at.strip()
    at = read_date(asked) or ""
    shown = select_facts(everything, at=at or None, history=not at)
    entities = Entities(everything)
    counts: dict[str, int] = {}
    for fact in everything:
        for name in (fact.subject, fact.object):
            counts[name] = counts.get(name, 0) + (2 if name == fact.subject else 1)
    names = sorted(counts, key=lambda name: -counts[name])
    about = about or next(iter(names), "")
    rows = _draw(shown, about, entities)
    numbers: dict[str, list[int]] = {}
    for number, item in enumerate(version.memory.evidence):
        numbers.setdefault(item.text, []).append(number)
    known = [(fact, numbers.get(fact.line, [])) for fact in shown]
    height = len(rows) * _HEIGHT + 6
    conflicts, is_date = list_conflicts(everything), bool(at or not asked)
    return FactsPage(about, names, rows, height, known, conflicts, at, is_date)


def _draw(facts: Sequence[Fact], about: str, entities: Entities) -> list[Row]:
    if not about:
        return []
    rows = [Row(about, "", None, 4, _BASELINE)]
    drawn: set[int] = set()

    def grow(name: str, parent: Row, hop: int) -> None:
        key = entities.key(name)
        for number, fact in enumerate(facts):
            ends = entities.key(fact.subject), entities.key(fact.object)
            if number in drawn or key not in ends or len(rows) >= _MOST_ROWS:
                continue
            drawn.add(number)
            forward = ends[0] == key and fact.relation != SAME_AS
            is_other = ends[0] != key or (fact.relation == SAME_AS and fact.object == name)
            other = fact.subject if is_other else fact.object
            label = f"{fact.relation} →" if forward else f"← {fact.relation}"
            x, y = 4 + hop * _INDENT, _BASELINE + len(rows) * _HEIGHT
            down = parent.x + 6
            row = Row(other, label, fact, x, y, f"M{down} {parent.y + 6}V{y - 5}H{x - 4}")
            rows.append(row)
            if hop < _HOPS:
                grow(other, row, hop + 1)

    grow(about, rows[0], 1)
    return rows
