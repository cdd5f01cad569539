"""The graph's input, output and channels, and the context of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, UntrackedValue
from typing_extensions import TypedDict

from memagent_graph.evidence.places import Memory, Row, to_plain
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.readers.base import Usage
from memagent_graph.seams import MISSING
from memagent_graph.text.source import OpenedSource, warnings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.text.chunks import Cutter
    from memagent_graph.text.source import Source


Stopped = Literal["end", "max_calls", "deadline", "search"]
"""Why a reading ended: end of the document, or a budget was used up; or it has not begun, since the
answer may stand in what a search finds (`ReadingConfig.how`)."""

LayerState = Mapping[str, Any]
"""The state of a layer of a fold: a TypedDict of plain values, which the layer defines."""
VERSIONS = "versions"
"""Name of the layer whose state has the record of a fold's last version."""


How = Literal["read", "whole", "passages"]
"""What an answer was written from: notes of the chunks that were read, and passages beside them;
the whole text in one call; or the passages that a search found."""


class Document(TypedDict):
    """Identifies what is read, across runs.

    Attributes:
        name: its name.
        digest: digest of its content.
        length: its length, in code points.
        uri: opens it again; None if it cannot be.
        warnings: what was skipped of it, or may be wrong with its text.
    """

    name: str
    digest: str
    length: int
    uri: str | None
    warnings: list[str]


class Scope(TypedDict):
    """Limits a fold: what it reads of its document, what it looks for, and how many calls it makes.

    Attributes:
        number: number of its question, from 1; 0 for the only one.
        questions: number of questions that the same chunks are read for.
        segment: number of its segment, from 1; 0 for the whole document.
        segments: number of segments that the document is read in; 0 if it is read as a whole.
        start: first code point of its span.
        end: one past the last code point of its span.
        origin: what a segment is known by, wherever it stands; see `Cutter.origins`; "" for others.
        calls: most calls of the fold, including its segments; None for no limit.
        memory_name: the named memory that it continues; None for none.
        head: that memory's version when the reading began; None for none.
    """

    number: int
    questions: int
    segment: int
    segments: int
    start: int
    end: int
    origin: str
    calls: int | None
    memory_name: str | None
    head: str | None


class Progress(TypedDict):
    """The progress of a fold, and its cost; only `overwrite_memory` advances it.

    Attributes:
        position: begin of the next chunk, or where reading ended, in code points.
        step: number of chunks read, and of steps after the last one.
        tokens: tokens of those chunks.
        calls: number of reader calls that returned.
        input_tokens: prompt tokens of those calls.
        output_tokens: completion tokens of those calls.
        seconds: time spent in those calls, in seconds.
        skipped: spans that were skimmed and not read, in code points of the document.
        unreached: spans that were not reached, for a reading in segments.
        again: whether skipped and unreached spans are being read after all.
        gated: number of chunks for which the update gate left the memory unchanged.
        cut: whether the memory, or one before it, was over its budget and lost its end.
        stopped: why the reading ended; None while it continues.
        version: id of the memory's version, or of the chain's root; None without a store.
        left_out: number of lines that were left out, by why; not there if there were none.
        not_shown: number of pictures without room, by the begin of their chunk; likewise.
    """

    position: int
    step: int
    tokens: int
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    skipped: list[list[int]]
    unreached: list[list[int]]
    again: bool
    gated: int
    cut: bool
    stopped: Stopped | None
    version: str | None
    left_out: NotRequired[dict[str, int]]
    not_shown: NotRequired[dict[str, int]]


class Fold(TypedDict):
    """One question over one span of a document, with the memory so far: plain values.

    Attributes:
        question: the question.
        source: the document.
        scope: the part of it that the fold reads, and what for.
        memory: text of the memory so far.
        places: its evidence and marks; see `to_plain`.
        progress: the progress so far.
        layers: states of layers, by name, as plain values. A state with a true `more` asks for
            another step after the last chunk.
    """

    question: str
    source: Document
    scope: Scope
    memory: str
    places: list[Row]
    progress: Progress
    layers: dict[str, LayerState]


def begin_fold(question: str, source: Document, scope: Scope) -> Fold:
    """Return a fold that has read nothing."""
    progress = Progress(
        position=scope["start"],
        step=0,
        tokens=0,
        calls=0,
        input_tokens=0,
        output_tokens=0,
        seconds=0.0,
        skipped=[],
        unreached=[],
        again=False,
        gated=0,
        cut=False,
        stopped=None,
        version=None,
    )
    nothing = to_plain(Memory())
    return Fold(
        question=question, source=source, scope=scope, **nothing, progress=progress, layers={}
    )


def mark_taken(fold: Fold, edit: str) -> Fold:
    """Return the fold, with the edit by a user that it continues from, and the time."""
    taken = {"edit": edit, "taken": datetime.now(UTC).isoformat()}
    state = {**fold["layers"].get(VERSIONS, {}), **taken}
    return {**fold, "layers": {**fold["layers"], VERSIONS: state}}


def cost_of(progress: Progress) -> Usage:
    """Return the cost of a fold so far."""
    calls, seconds = progress["calls"], progress["seconds"]
    return Usage(calls, progress["input_tokens"], progress["output_tokens"], seconds)


def document_of(source: Source) -> Document:
    """Return the record of an opened document."""
    name, digest, length, uri = source.name, source.digest, source.length, source.uri
    return Document(
        name=name, digest=digest, length=length, uri=uri, warnings=[*warnings_of(source)]
    )


def whole_scope(
    length: int, *, questions: int = 1, segments: int = 0, calls: int | None = None
) -> Scope:
    """Return the scope of a fold of a whole document; for the arguments, see `Scope`."""
    return Scope(
        number=0,
        questions=questions,
        segment=0,
        segments=segments,
        start=0,
        end=length,
        origin="",
        calls=calls,
        memory_name=None,
        head=None,
    )


def is_segmented(scope: Scope) -> bool:
    """Whether a fold is merged from the folds of segments."""
    return scope["segments"] > 0 and not scope["segment"]


@dataclass
class Run:
    """The context of one call of the graph, passed to all nodes.

    Attributes:
        document: the document as given by the caller; None if only its record is known.
        memory_name: the named memory of a run that is resumed before its document was opened.
        write: writes events to the stream; None if nobody streams them, or until a node knows how.
        streams: whether the caller streams events.
        started: time when the call began, in seconds of the monotonic clock.
        config: config of the current node.
        store: store of the versions; None without one.
        namespace: namespace of the versions in the store.
        chains: the `Chain` of each fold, by name of the fold.
        cutter: cuts the chunks; None until the document is open.
        opening: held while the document is opened again.
        task: id of the host's task that the graph runs in; "" without a host.
        host: config of the host's node, to stream the answer as its message.
        message_id: id of the answer as a message of the stream.
    """

    document: Any = None
    memory_name: str | None = None
    write: Callable[[object], None] | None = None
    streams: bool = False
    started: float = field(default_factory=monotonic)
    config: RunnableConfig = field(default_factory=RunnableConfig)
    store: BaseStore | None = None
    namespace: tuple[str, ...] = NAMESPACE
    chains: dict[str, object] = field(default_factory=dict)
    cutter: Cutter | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)
    task: str = ""
    host: RunnableConfig | None = None
    message_id: str | None = None

    def emit(self, event: Mapping[str, object]) -> None:
        """Send an event to the stream of this run."""
        if self.write is not None:
            self.write(event)


Changes = dict[str, Any]
"""The channels of the state that a node changes."""


class ReadingInput(TypedDict, total=False):
    """The input of a reading.

    Attributes:
        question: the question.
        questions: several questions instead of one; the document is read for all at the same time.
        document: the document: anything that `open_source` accepts.
        version: instead of a document, a stored memory to answer from: a version's id or a name.
        memory_name: name of a memory to continue with the document, or to begin.
    """

    question: str
    questions: list[str]
    document: Annotated[Any, UntrackedValue]
    version: str | None
    memory_name: Annotated[str | None, UntrackedValue]


Folds = dict[str, Fold]


def _gather(answers: list[QuestionAnswer], more: list[QuestionAnswer] | None) -> Any:
    """Records in the order of their questions; None removes them, and the channel is empty."""
    if more is None:
        return MISSING
    return sorted([*answers, *more], key=lambda record: record["number"])


def _move(folds: Folds, more: Mapping[str, Fold | None]) -> Any:
    """The latest fold of each segment, by name; None removes one, and nothing is left of none."""
    return {key: fold for key, fold in {**folds, **more}.items() if fold is not None} or MISSING


def _collects(reducer: Callable[..., Any]) -> BinaryOperatorAggregate[Any]:
    """Return a channel for values of several tasks, which is empty until there is one."""
    return BinaryOperatorAggregate(Any, reducer)


class Place(TypedDict):
    """A statement and where it stands: the fields of `Evidence`."""

    text: str
    source: str
    line: int
    start: int
    end: int
    page: int | None
    heading: str | None


class Cost(TypedDict):
    """The cost of a reading, as in `Usage`.

    `gated` is the number of chunks for which the update gate was closed, `document_tokens` those of
    the chunks that were read.
    """

    calls: int
    gated: int
    input_tokens: int
    output_tokens: int
    seconds: float
    document_tokens: int


class Answered(TypedDict, total=False):
    """The result of a reading for one question.

    Attributes:
        answer: the answer itself.
        response: the whole reply that the answer was taken from.
        structured_response: the answer in the shape of `response_format`, if given: an instance of
            the class from `invoke`, JSON values in streams and checkpoints.
        memory: the final memory.
        evidence: places of the memory's statements in the document, as far as they are known.
        citations: places of the answer in the document, as far as they are known.
        how: what it was written from: "read" means the notes of a reading, "whole" the whole text,
            "passages" what a search found (`ReadingConfig.how`).
        passages: spans of the document that the answer was shown beside the memory: starts and ends
            in code points. Without any it was written from the memory alone: the document is not
            at hand, or has none that fit.
        found: whether the answer was in what it was shown; None if the reader cannot say.
        unsupported: statements of the answer that nothing in the memory supports, each with the
            names and numbers that the memory lacks.
        usage: the cost of the reading.
        coverage: share of the opened text that the model saw, 0 to 1.
        sources: a record of each source that was opened, and of each skipped one; empty in a run
            that was resumed after its last chunk.
        skipped: spans of the document that were skimmed and not read: starts and ends in
            code points.
        stopped: why reading ended: "end", "max_calls" or "deadline".
        reader: name of the reader that answered.
        version: id of the final memory's version; None without a store.
        warnings: problems that did not stop the reading, such as an unreachable store.
    """

    answer: str | None
    response: str
    structured_response: Any
    memory: str
    evidence: list[Place]
    citations: list[Place]
    how: How
    passages: list[list[int]]
    found: bool | None
    unsupported: list[dict[str, Any]]
    usage: Cost
    coverage: float
    sources: list[OpenedSource]
    skipped: list[list[int]]
    stopped: Stopped
    reader: str
    version: str | None
    warnings: list[str]


class QuestionAnswer(Answered):
    """The result of a reading for one of several questions.

    Attributes:
        number: number of the question, from 0.
        question: the question.
        error: message of the error; None if the question was answered.
        error_type: name of the error's type, such as "ModelError".
    """

    number: int
    question: str
    error: str | None
    error_type: str | None


class ReadingOutput(Answered, total=False):
    """The output of a reading.

    Attributes:
        answers: one result for each of several questions, in order.
    """

    answers: Annotated[list[QuestionAnswer], _collects(_gather)]


class ReadingState(ReadingInput, ReadingOutput, total=False):
    """All channels: those of `Fold`, and the folds of the segments while they are read.

    The document is not checkpointed, and so is missing on a resume.
    """

    folds: Annotated[Folds, _collects(_move)]
    source: Document
    scope: Scope
    places: list[Row]
    progress: Progress
    layers: dict[str, LayerState]


class QuestionState(TypedDict):
    """The input of the graph for one of several questions, numbered from 0.

    It reads the document, or answers from the stored memory of a `version`.
    """

    number: int
    question: str
    source: Document
    scope: Scope
    version: str | None


_MOST_RUNS = 256
"""Most skipped spans of a fold; further chunks are read."""


def has_room(progress: Progress, start: int) -> bool:
    """Whether a span that begins at `start` can be recorded as skipped."""
    skipped = progress["skipped"]
    return len(skipped) < _MOST_RUNS or skipped[-1][1] == start


def merge_spans(spans: Sequence[list[int]]) -> list[list[int]]:
    """Return sorted spans, with adjacent ones joined."""
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = [merged[-1][0], end]
        else:
            merged.append([start, end])
    return merged


def common_spans(spans: Sequence[list[int]], others: Sequence[list[int]]) -> list[list[int]]:
    """Return the intersection of two sorted lists of spans without overlaps."""
    pairs = ((max(one[0], two[0]), min(one[1], two[1])) for one in spans for two in others)
    return [[start, end] for start, end in pairs if start < end]


def reopen(progress: Progress) -> Progress | None:
    """Return the progress from which a fold that has ended reads what it skipped; None if nothing.

    A fold that a limit ended is not continued.
    """
    if progress["again"] or progress["stopped"] != "end" or not progress["skipped"]:
        return None
    return {**progress, "position": progress["skipped"][0][0], "again": True, "stopped": None}


def unread(progress: Progress, end: int) -> list[list[int]]:
    """Return the spans that a fold has not read, up to `end`."""
    rest = progress["unreached"]
    if not (rest or progress["again"]) and progress["position"] < end:
        rest = [[progress["position"], end]]
    return merge_spans(sorted([*progress["skipped"], *rest]))


def count_covered(progress: Progress, start: int, end: int, shown: Sequence[list[int]] = ()) -> int:
    """Return how many code points between `start` and `end` the model has seen."""
    reached = end if progress["again"] else progress["position"]
    read = reached - start - sum(last - first for first, last in progress["skipped"])
    if not shown:
        return read
    return read + sum(last - first for first, last in common_spans(unread(progress, end), shown))


def warn_of_left_out(progress: Progress, more: Mapping[str, int]) -> list[str]:
    """Return a warning about what was left out of a fold, and `more`; none if nothing was."""
    pictures = sum(progress.get("not_shown", {}).values())
    crowded = {"a picture of a chunk, without room in pictures": pictures} if pictures else {}
    left_out = {**progress.get("left_out", {}), **crowded, **more}
    lines = [f"{count} ({why})" for why, count in left_out.items()]
    return [f"What was left out: {', '.join(lines)}."] if lines else []
