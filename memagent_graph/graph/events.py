"""The events of a reading, in `stream_mode="custom"`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class OpenedEvent(TypedDict):
    """The document was opened.

    Attributes:
        task: id of the host's task that this reading runs in, which distinguishes branches of the
            host's own `Send`; "" without a host.
        length: length of the document, in code points.
        skipped: number of files skipped as hidden, binary, or links out of the folder.
    """

    event: Literal["opened"]
    agent: str
    task: str
    source: str
    length: int
    skipped: int


class FoldEvent(TypedDict):
    """Fields of the events of a fold.

    Attributes:
        agent: name of the graph.
        task: id of the task, as in `OpenedEvent`.
        question: the question.
        fold: name of the fold: "2" for the second question, "2.3" for its third segment, "" if
            there is only one fold.
        round: number of the round, counted from 1.
        source: name of the document.
    """

    agent: str
    task: str
    question: str
    fold: str
    round: int
    source: str


class ChunkEvent(FoldEvent):
    """A chunk was read.

    Attributes:
        chunk: number of the chunk, counted from 1.
        chunks: number of chunks in total, estimated from those read so far.
        position: code points read by this fold, out of `length`.
        tokens: tokens read so far.
        memory_tokens: tokens of the memory now.
        gate: "closed" if the update gate left the memory unchanged.
        enough: whether reading ends here because the reader has enough.
        recalled: places of the passages and memories that were shown again.
        added: lines added to the memory.
        removed: lines removed from the memory.
    """

    event: Literal["chunk"]
    chunk: int
    chunks: int
    position: int
    length: int
    tokens: int
    memory_tokens: int
    gate: Literal["open", "closed"]
    enough: bool
    recalled: list[str]
    added: list[str]
    removed: list[str]


class AnswerEvent(TypedDict):
    """The answer was written; for the fields, see the events above and `Answered`."""

    event: Literal["answer"]
    agent: str
    task: str
    question: str
    source: str
    answer: str
    coverage: float


class MergeEvent(FoldEvent):
    """The memories of the segments were merged, or a round's memory was judged.

    Attributes:
        round: number of the round that ended.
        query: query of the next round; None without a next round.
        memories: number of memories that were not empty.
        calls: reader calls of all merges.
        memory_tokens: tokens of the memory now.
    """

    event: Literal["merge"]
    query: str | None
    memories: int
    calls: int
    memory_tokens: int


class SkipEvent(FoldEvent):
    """A chunk was skimmed, and not read in this round.

    Attributes:
        start: first code point of the chunk.
        end: one past its last code point.
        position: code points that this fold has read or skipped, out of `length`.
    """

    event: Literal["skip"]
    start: int
    end: int
    position: int
    length: int


class FallbackEvent(TypedDict):
    """The memory lacks the answer, so skipped chunks are read after all.

    Attributes:
        position: code points read so far, out of `length`.
    """

    event: Literal["fallback"]
    agent: str
    task: str
    question: str
    fold: str
    source: str
    position: int
    length: int


class PausedFold(FoldEvent):
    """Fields of events of a fold whose memory is or was held.

    Attributes:
        memory: the held memory: its name, or the key of a reading without one.
        version: id of the memory's current version; None before the first chunk.
        position: code points that this fold has read, out of `length`.
    """

    memory: str
    version: str | None
    position: int
    length: int


class HeldEvent(PausedFold):
    """A fold pauses because its memory is held.

    Attributes:
        by: holder of the memory.
        since: time of the hold, ISO 8601, UTC.
    """

    event: Literal["held"]
    by: str
    since: str


class ReleasedEvent(PausedFold):
    """A fold that was held continues from its `version`.

    Attributes:
        edited: whether a person made that version by an edit.
    """

    event: Literal["released"]
    edited: bool


Event = (
    OpenedEvent
    | ChunkEvent
    | SkipEvent
    | FallbackEvent
    | MergeEvent
    | HeldEvent
    | ReleasedEvent
    | AnswerEvent
)
