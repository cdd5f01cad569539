"""The events that a reading emits, for `stream_mode="custom"`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class OpenedEvent(TypedDict):
    """The document was opened.

    Attributes:
        task: id of the host's task in which this reading runs; empty without a host. It tells
            branches of a host's own `Send` apart.
        length: code points.
        skipped: files of a folder that are hidden, not text, or lead out of it.
    """

    event: Literal["opened"]
    agent: str
    task: str
    source: str
    length: int
    skipped: int


class ChunkEvent(TypedDict):
    """A chunk was read.

    Attributes:
        task: as in `OpenedEvent`.
        question: that it was read for.
        fold: tells the folds of one reading apart: "2" is that of the second question, "2.3" that
            of its third segment; empty for the only one.
        round: which time the document is read, counted from 1.
        chunk: its number, counted from 1.
        chunks: how many there will be, estimated from those read so far.
        position: code points read by this fold, out of `length`.
        tokens: tokens read so far.
        memory_tokens: size of the memory now.
        gate: "closed" if the reader left the memory as it was, by the update gate.
        enough: whether reading ends here because the reader has enough.
        recalled: places of the passages and memories that were shown again with it.
        added: lines that the memory gained.
        removed: lines that it lost.
    """

    event: Literal["chunk"]
    agent: str
    task: str
    question: str
    fold: str
    round: int
    source: str
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
    """The answer was written; fields are those of the events before."""

    event: Literal["answer"]
    agent: str
    task: str
    question: str
    source: str
    answer: str
    coverage: float


class MergeEvent(TypedDict):
    """The memories of the segments were merged, or that of a round was judged.

    Attributes:
        round: that ended.
        query: what the next round looks for; None if there is none.
        memories: how many there were that held anything.
        calls: of the reader, for all merges.
        memory_tokens: size of the memory now.
    """

    event: Literal["merge"]
    agent: str
    task: str
    question: str
    fold: str
    round: int
    query: str | None
    source: str
    memories: int
    calls: int
    memory_tokens: int


class SkipEvent(TypedDict):
    """A chunk was skimmed and not read in this round.

    Attributes:
        round: as in `ChunkEvent`.
        start: of the chunk, in code points of the document.
        end: one past its last.
        position: code points that this fold has read or skipped, out of `length`.
    """

    event: Literal["skip"]
    agent: str
    task: str
    question: str
    fold: str
    round: int
    source: str
    start: int
    end: int
    position: int
    length: int


class FallbackEvent(TypedDict):
    """The answer is not in the memory: what was skipped is read after all.

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


class PausedFold(TypedDict):
    """What is told of a fold whose memory is, or was, held.

    Attributes:
        memory: that is held: its name, or the key of a reading without one.
        version: of the memory as it is now; None before the first chunk.
        position: code points that this fold has read, out of `length`.
    """

    agent: str
    task: str
    question: str
    fold: str
    round: int
    source: str
    memory: str
    version: str | None
    position: int
    length: int


class HeldEvent(PausedFold):
    """A fold waits, since somebody holds its memory.

    Attributes:
        by: who holds it.
        since: when they asked for it, ISO 8601, UTC.
    """

    event: Literal["held"]
    by: str
    since: str


class ReleasedEvent(PausedFold):
    """A fold that was held goes on from its `version`.

    Attributes:
        edited: whether a person wrote that meanwhile.
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
