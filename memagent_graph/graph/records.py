"""What a fold is: one question over one span of a document, with the memory so far.

Whatever is checkpointed is plain (strings, numbers, lists, dicts) and does not grow with the
document: other types would warn on load, and come back as dicts in LangGraph's strict mode.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict

from memagent_graph.readers.base import Evidence, Memory, Unsupported

if TYPE_CHECKING:
    from memagent_graph.text.source import Source

Stopped = Literal["end", "done", "max_calls", "deadline"]
"""Why a reading ended: the document's end, the reader had enough, or a budget was spent."""


Row = list[Any]
"""The fields of an `Evidence`, in order, without page and heading where there are none; those of an
`Unsupported`; or `Memory.dropped` alone, if it is not 0."""


class SourceRecord(TypedDict, total=False):
    """Identifies the document, and the memory that it goes into, from one run to the next.

    Attributes:
        name: what to call the document.
        digest: of its content.
        length: code points.
        uri: what opens it again, if anything does.
        memory_name: the named memory that this reading continues, if any.
        head: the version that it had when the reading began; of a segment in a later round, that
            of the memory which the round began with.
        fold: as start and end, of a `Span`, where there are several folds.
        calls: most calls of that fold, and of those that it is merged from; None for no limit.
        shared: folds that read the same, if more than one.
        segments: parts that are read at once, each by a fold of its own, if it is read in parts.
        whole: of such a part, the name of the fold that all of them are merged into.
        round: how often the document is read with this reading, if more than once.
        query: what a later round looks for.
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
    """What an update asked to be shown again: the fields of `Recall` that it has.

    Attributes:
        besides: spans that it was shown when it asked, where it gave words.
    """

    words: str
    besides: list[list[int]]
    span: list[int]
    earlier: int | str
    memory: str


class Looks(TypedDict):
    """How a fold looks back.

    Attributes:
        wanted: what the next step is to show; None for nothing.
        shown: passages and memories so far.
        after: steps after the last chunk.
    """

    wanted: Wanted | None
    shown: int
    after: int


class Progress(TypedDict):
    """How far a reading got and what it cost; only `overwrite_memory` moves it.

    Attributes:
        position: where the next chunk begins; at the end, where reading ended.
        step: chunks read, and steps after the last one.
        tokens: tokens of those chunks.
        calls: reader calls that returned.
        gated: chunks that added nothing, by the update gate.
        input_tokens: prompt tokens of those calls.
        output_tokens: completion tokens of those calls.
        seconds: time spent in them.
        skipped: spans that were skimmed and not read, in code points of the document.
        unreached: of a document read in segments, the spans that these ended before, in all rounds.
        again: whether these are read after all, one after the other.
        looks: back, if there were any.
        cut: whether the memory, or one before it, was over its budget and lost its end.
        enough: the answer with which the reader said that it has enough; None if it did not.
        stopped: why the reading ended; None while it goes on.
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
        fold: tells the folds of a graph apart; empty for the only one.
        start: where it begins, in code points of the document.
        end: where it ends.
    """

    fold: str
    start: int
    end: int


class Fold(TypedDict):
    """One question over one span of a document, with the memory so far: plain values.

    Attributes:
        question: what to find out.
        source: what identifies the document.
        memory: the notes so far.
        places: what is known of the notes as rows, which are half the size of dicts with text
            this short; each checkpoint has them.
        progress: how far reading got.
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
    """A fold that has read nothing."""
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
    """What identifies a document."""
    return SourceRecord(
        name=source.name, digest=source.digest, length=source.length, uri=source.uri
    )


def looks_of(progress: Progress) -> Looks:
    """How a fold looks back."""
    return progress.get("looks", Looks(wanted=None, shown=0, after=0))


def fold_name(question: int) -> str:
    """What tells the fold of one of several questions from the others', by its number from 0."""
    return str(question + 1)


def segment_name(whole: str, segment: int) -> str:
    """What tells the fold of a segment apart: its question's number and its own, from 1.

    Args:
        whole: name of the question's fold.
        segment: its number from 0.
    """
    return f"{whole or 1}.{segment + 1}"


def query_of(fold: Fold) -> str:
    """What a fold looks for: the question, except for later rounds."""
    return fold["source"].get("query") or fold["question"]


def round_of(record: SourceRecord) -> int:
    """Which round a fold is of, from 1."""
    return record.get("round", 1)


def is_segmented(record: SourceRecord) -> bool:
    """Whether a fold is merged from those of several segments."""
    return "segments" in record and "whole" not in record


def span_of(record: SourceRecord) -> Span:
    """What a fold reads: the whole document, unless its record says otherwise."""
    end = record.get("end", record["length"])
    return Span(record.get("fold", ""), record.get("start", 0), end)


def noted(memory: Memory) -> Noted:
    """A memory as the graph's channels hold it."""
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
    """The memory, with what is known of what is still in it: a person may have edited it since."""
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
    """A memory of another text, with the evidence and the marks of what is in both."""
    evidence = tuple(item for item in memory.evidence if item.text in text)
    unsupported = tuple(item for item in memory.unsupported if item.text in text)
    return replace(memory, text=text, evidence=evidence, unsupported=unsupported)
