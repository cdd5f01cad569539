"""Convert the output of a reading to one document for each source, the most relevant first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.graph.state import Place
    from memagent_graph.text.source import JoinedSource, Source


def documents_by_source(
    corpus: JoinedSource, output: Mapping[str, Any], most: int
) -> list[Document]:
    """Return a document for each source with statements in the memory, the best first.

    Sources that the answer cites come before the others: those with most citations first, then
    in the answer's order. The others follow by how much of the memory came from them.

    Args:
        corpus: the source that was read.
        output: the fields of `ReadingOutput`.
        most: documents to return. A memory without evidence is one document with all sources.
    """
    named = ("answer", "coverage", "structured_response")
    about = {name: output[name] for name in named if name in output}
    found = _placed(corpus, output["evidence"])
    if not found:
        return _memory(corpus, output["memory"], about)
    cited = _placed(corpus, output["citations"])
    groups: dict[int, list[_Statement]] = {}
    for statement in found:
        groups.setdefault(id(statement.part), []).append(statement)
    sources = [_found_in(items, found, cited) for items in groups.values()]
    sources.sort(key=_Found.rank)
    return [_document(source, number, about) for number, source in enumerate(sources[:most])]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of the memory, placed in the part of the corpus that it came from."""

    part: Source
    place: Place

    @property
    def span(self) -> tuple[int, int]:
        """The beginning and the end of the statement."""
        return self.place["start"], self.place["end"]


@dataclass(frozen=True, slots=True)
class _Found:
    """The statements of the memory from one source.

    Attributes:
        statements: the statements, in the memory's order.
        citations: the answer's citations of this source.
        first: place of the first of them among all citations.
        share: share of the text of all statements, from 0 to 1.
    """

    statements: Sequence[_Statement]
    citations: Sequence[_Statement]
    first: int
    share: float

    def rank(self) -> tuple[int, int, float]:
        """Sort key of the source; lower is better."""
        return -len(self.citations), self.first, -self.share

    def score(self, number: int) -> float:
        """Relevance from 0 to 1; above 0.5 if the answer cites the source."""
        return 0.5 + 0.5 / (number + 1) if self.citations else 0.5 * self.share


def _found_in(
    items: Sequence[_Statement], found: Sequence[_Statement], cited: Sequence[_Statement]
) -> _Found:
    part = items[0].part
    places = [place for place, item in enumerate(cited) if item.part is part]
    return _Found(
        items,
        [cited[place] for place in places],
        first=min(places, default=len(cited)),
        share=_size(items) / _size(found),
    )


def _size(items: Sequence[_Statement]) -> int:
    return sum(len(item.place["text"]) for item in items)


def _placed(corpus: JoinedSource, items: Sequence[Place]) -> list[_Statement]:
    """Statements in their parts; one that stands in the name of a part is not a statement."""
    placed = []
    for item in items:
        part, begin = corpus.part_at(item["start"])
        start, end = item["start"] - begin, min(item["end"] - begin, part.length)
        if start >= 0:
            place: Place = {**item, "source": part.name, "start": start, "end": end}
            placed.append(_Statement(part, place))
    return placed


def _document(found: _Found, number: int, about: Mapping[str, object]) -> Document:
    items = found.statements
    part = items[0].part
    whole = number < _WHOLE_SOURCES and part.length <= _SHORT
    return Document(
        page_content=part.read(0, part.length) if whole else _passages(items),
        metadata={
            "source": part.name,
            "page": (found.citations or items)[0].place["page"],
            "start": 0 if whole else min(item.span[0] for item in items),
            "end": part.length if whole else max(item.span[1] for item in items),
            "score": found.score(number),
            "lines": [item.place["line"] for item in items],
            "evidence": [item.place for item in items],
            **about,
        },
    )


def _passages(items: Sequence[_Statement]) -> str:
    """Return the source's passages that support the statements, each once, on a line of its own."""
    part = items[0].part
    spans: list[tuple[int, int]] = []
    for start, end in sorted(item.span for item in items):
        if spans and start < spans[-1][1]:
            first, last = spans.pop()
            spans.append((first, max(last, end)))
        else:
            spans.append((start, end))
    return "\n".join(" ".join(part.read(start, end - start).split()) for start, end in spans)


_SHORT = 2000
"""Code points of a source that is a passage already."""
_WHOLE_SOURCES = 3
"""So many passages are returned whole: what a statement leaves unsaid often stands next to it."""


def _memory(corpus: JoinedSource, memory: str, about: Mapping[str, object]) -> list[Document]:
    """The whole memory, of a reader that does not know where it came from."""
    if not memory.strip():
        return []
    span: dict[str, object] = {
        "source": ", ".join(part.name for part in corpus.parts),
        "page": None,
        "start": 0,
        "end": sum(part.length for part in corpus.parts),
        "score": 0.5,
        "lines": [],
        "evidence": [],
    }
    return [Document(page_content=memory, metadata={**span, **about})]
