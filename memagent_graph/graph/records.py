"""The fold: one question over one span of a document, with its memory so far.

All that is checkpointed consists of plain values (strings, numbers, lists, dicts) and does not grow
with the document: other types cause warnings on load, and become dicts in LangGraph's strict mode.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict

from memagent_graph.evidence.places import Evidence, Memory, Unsupported

if TYPE_CHECKING:
    from memagent_graph.text.source import Source

Stopped = Literal["end", "done", "max_calls", "deadline"]
"""Why a reading ended: end of the document, reader had enough, or a budget was used up."""


Row = list[Any]
"""The fields of an `Evidence`, in order, without a page and heading that are None; the fields of an
`Unsupported`; or `Memory.dropped`, if it is not 0."""


class SourceRecord(TypedDict, total=False):
    """Identifies a fold's document, memory and span across runs.

    Attributes:
        name: name of the document.
        digest: digest of its content.
        length: its length, in code points.
        uri: opens it again; None if it cannot be.
        memory_name: the named memory that this reading continues, if any.
        head: that memory's version when the reading began; for a segment in a later round, the
            version that the round began with.
        fold: name of the fold, if there are several; see `Span`.
        start: first code point of the fold's span; 0 by default.
        end: one past the span's last code point; `length` by default.
        calls: most calls of the fold, including its segments; None for no limit.
        shared: number of folds that read the same chunks, if more than one.
        segments: number of segments, if the document is read in segments.
        whole: name of the fold that a segment is merged into.
        round: number of the round, if later than the first.
        query: query of a later round.
    """

    name: str
    digest: str
    length: int
    uri: str | None
    memory_name: str
    head: str | None
    fold: str
    start: int
    end: int
    calls: int | None
    shared: int
    segments: int
    whole: str
    round: int
    query: str


class Wanted(TypedDict, total=False):
    """The request of an update to see something again: the set fields of a `Recall`.

    Attributes:
        besides: spans that the update was shown when it asked, for a request by `words`.
    """

    words: str
    besides: list[list[int]]
    span: list[int]
    earlier: int | str
    memory: str


class Looks(TypedDict):
    """The state of a fold's look-back.

    Attributes:
        wanted: request that the next step fulfils; None for none.
        shown: number of passages and memories shown so far.
        after: number of steps after the last chunk.
    """

    wanted: Wanted | None
    shown: int
    after: int


class Progress(TypedDict):
    """The progress of a fold, and its cost; only `overwrite_memory` advances it.

    Attributes:
        position: begin of the next chunk, or where reading ended, in code points.
        step: number of chunks read, and of steps after the last one.
        tokens: tokens of those chunks.
        calls: number of reader calls that returned.
        gated: number of chunks for which the update gate was closed.
        input_tokens: prompt tokens of those calls.
        output_tokens: completion tokens of those calls.
        seconds: time spent in those calls, in seconds.
        skipped: spans that were skimmed and not read, in code points of the document.
        unreached: spans that no round has reached, for a reading in segments.
        again: whether skipped and unreached spans are being read after all.
        looks: the state of look-back, if any.
        cut: whether the memory, or one before it, was over its budget and lost its end.
        enough: the answer with which the reader had enough; None if it had not.
        stopped: why the reading ended; None while it continues.
        version: id of the memory's version, or of the chain's root; None without a store.
    """

    position: int
    step: int
    tokens: int
    calls: int
    gated: int
    input_tokens: int
    output_tokens: int
    seconds: float
    skipped: list[list[int]]
    unreached: list[list[int]]
    again: bool
    looks: NotRequired[Looks]
    cut: bool
    enough: str | None
    stopped: Stopped | None
    version: str | None


class Span(NamedTuple):
    """The part of a document that a fold reads.

    Attributes:
        fold: name of the fold; "" for the only one.
        start: its first code point in the document.
        end: one past its last code point.
    """

    fold: str
    start: int
    end: int


class Fold(TypedDict):
    """One question over one span of a document, with the memory so far: plain values.

    Attributes:
        question: the question.
        source: identifies document and span.
        memory: text of the memory so far.
        places: evidence and marks of the memory as rows, which in checkpoints take half the space
            of dicts.
        progress: the progress so far.
    """

    question: str
    source: SourceRecord
    memory: str
    places: list[Row]
    progress: Progress


class Noted(TypedDict):
    """The part of a fold that is its memory."""

    memory: str
    places: list[Row]


def begun(question: str, source: SourceRecord) -> Fold:
    """Return a fold that has read nothing."""
    progress = Progress(
        position=source.get("start", 0),
        step=0,
        tokens=0,
        calls=0,
        gated=0,
        input_tokens=0,
        output_tokens=0,
        seconds=0.0,
        skipped=[],
        unreached=[],
        again=False,
        cut=False,
        enough=None,
        stopped=None,
        version=None,
    )
    nothing = noted(Memory())
    return Fold(question=question, source=source, **nothing, progress=progress)


def record_of(source: Source) -> SourceRecord:
    """Return the record of a document."""
    return SourceRecord(
        name=source.name, digest=source.digest, length=source.length, uri=source.uri
    )


def looks_of(progress: Progress) -> Looks:
    """Return the state of a fold's look-back."""
    return progress.get("looks", Looks(wanted=None, shown=0, after=0))


def fold_name(question: int) -> str:
    """Return the name of the fold of one of several questions, by its number from 0."""
    return str(question + 1)


def segment_name(whole: str, segment: int) -> str:
    """Return the name of a segment's fold: numbers of question and segment, from 1.

    Args:
        whole: name of the question's fold; "" for the only one.
        segment: number of the segment, from 0.
    """
    return f"{whole or 1}.{segment + 1}"


def query_of(fold: Fold) -> str:
    """Return what a fold looks for: the question in the first round, a query in later ones."""
    return fold["source"].get("query") or fold["question"]


def round_of(record: SourceRecord) -> int:
    """Return the number of a fold's round, from 1."""
    return record.get("round", 1)


def is_segmented(record: SourceRecord) -> bool:
    """Whether a fold is merged from the folds of segments."""
    return "segments" in record and "whole" not in record


def span_of(record: SourceRecord) -> Span:
    """Return the span that a fold reads; the whole document by default."""
    end = record.get("end", record["length"])
    return Span(record.get("fold", ""), record.get("start", 0), end)


def noted(memory: Memory) -> Noted:
    """Return a memory in the form of the graph's channels."""
    rows = [_row(item) for item in memory.evidence]
    rows += [[item.text, [*item.missing]] for item in memory.unsupported]
    if memory.dropped:
        rows.append([memory.dropped])
    return {"memory": memory.text, "places": rows}


def _row(item: Evidence) -> Row:
    row = [*astuple(item)]
    while row[-1] is None:
        row.pop()
    return row


def memory_of(fold: Fold) -> Memory:
    """Return the memory of a fold, with evidence and marks that match its possibly edited text."""
    evidence, unsupported, dropped = [], [], 0
    for row in fold["places"]:
        match row:
            case [count]:
                dropped = count
            case [text, missing]:
                unsupported.append(Unsupported(text, tuple(missing)))
            case _:
                evidence.append(Evidence(*row))
    text = fold["memory"]
    return backed(text, Memory(text, tuple(evidence), tuple(unsupported), dropped))


def backed(text: str, memory: Memory) -> Memory:
    """Return a memory with another text, and the evidence and marks that still apply."""
    evidence = tuple(item for item in memory.evidence if item.text in text)
    unsupported = tuple(item for item in memory.unsupported if item.text in text)
    return replace(memory, text=text, evidence=evidence, unsupported=unsupported)
