"""The events of a reading, in `stream_mode="custom"`."""

from __future__ import annotations

from contextvars import ContextVar
from math import ceil
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables.config import merge_configs, set_config_context
from langgraph.graph.message import push_message
from typing_extensions import TypedDict

from memagent_graph.graph.state import count_covered, fold_name
from memagent_graph.readers.completion import Listener

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.reading import FoldUpdate, Reading
    from memagent_graph.graph.state import Fold, How, Progress, Run
    from memagent_graph.readers.base import Answer
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import OpenedSource


class OpenedEvent(TypedDict):
    """The document was opened.

    Attributes:
        task: id of the host's task that this reading runs in, which distinguishes branches of the
            host's own `Send`; "" without a host.
        length: length of the document, in code points.
        skipped: number of files skipped: hidden, binary, broken, or links out of the folder.
        warnings: what was skipped, by name, or may be wrong with the text, a line for each.
        sources: a record of each source that was opened, and of each skipped one.
    """

    event: Literal["opened"]
    agent: str
    task: str
    source: str
    length: int
    skipped: int
    warnings: list[str]
    sources: list[OpenedSource]


class FoldEvent(TypedDict):
    """Fields of the events of a fold.

    Attributes:
        agent: name of the graph.
        task: id of the task, as in `OpenedEvent`.
        question: the question.
        fold: name of the fold: "2" for the second question, "2.3" for its third segment, "" if
            there is only one fold.
        source: name of the document.
    """

    agent: str
    task: str
    question: str
    fold: str
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
    how: How
    coverage: float


class MergeEvent(FoldEvent):
    """The memories of the segments were merged.

    Attributes:
        memories: number of memories that were not empty.
        calls: reader calls of all merges.
        memory_tokens: tokens of the memory now.
    """

    event: Literal["merge"]
    memories: int
    calls: int
    memory_tokens: int


class SkipEvent(FoldEvent):
    """A chunk was skimmed, and not read.

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


class FallbackEvent(FoldEvent):
    """The memory lacks the answer, so skipped chunks are read after all.

    Attributes:
        position: code points read so far, out of `length`.
    """

    event: Literal["fallback"]
    position: int
    length: int


class EditedEvent(FoldEvent):
    """A fold continues from a user's edit of its memory.

    Attributes:
        memory: the memory: its name, or the key of a reading without one.
        version: id of the edit.
    """

    event: Literal["edited"]
    memory: str
    version: str


Event = (
    OpenedEvent | ChunkEvent | SkipEvent | FallbackEvent | MergeEvent | EditedEvent | AnswerEvent
)


class Observer:
    """A mixin for a `BaseCallbackHandler` that observes readings; all methods are optional.

    `step` is the run id of a node: model calls in it are its children, and its parent is the run of
    its fold. An error in a method ends the run.
    """

    def on_open(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """The document was opened; `fold` begins, and `about` is the run's metadata."""

    def on_begin(self, step: UUID) -> None:
        """The reader is about to be called, for the first time or again: what failed is void."""

    def on_refuse(self, step: UUID, reply: int) -> None:
        """A reply was refused, because it was empty or over the budget; another was asked for.

        It was the last (-1) of the attempt, or of its current `part`, or the one before (-2).
        """

    def on_overwrite(self, step: UUID, before: Fold, after: Fold) -> None:
        """A chunk was read."""

    def on_merge(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """The memories of the segments were merged into that of `after`."""

    def on_answer(self, step: UUID, answer: Answer) -> None:
        """The answer was written."""


part: ContextVar[object] = ContextVar("part", default=None)
"""The current one of several concurrent calls of a step."""


def observers(config: RunnableConfig) -> list[Observer]:
    """Return the observers in a node's config."""
    handlers = getattr(config.get("callbacks"), "handlers", ())
    return [handler for handler in handlers if isinstance(handler, Observer)]


def is_exact(reading: Reading, config: RunnableConfig | None) -> bool:
    """Whether replies are taken word for word, as in the paper: recorded runs are too."""
    return reading.config.exact_cuts or bool(config and observers(config))


def step_of(config: RunnableConfig) -> UUID:
    """Return the run id of the node with this config."""
    found: UUID = config["callbacks"].parent_run_id  # type: ignore[assignment,union-attr]
    return found


def begin_attempt(config: RunnableConfig) -> None:
    """Tell the observers in a node's config that its reader is about to be called."""
    for observer in observers(config):
        observer.on_begin(step_of(config))


class Speech:
    """Puts the pieces of an answer into the message stream.

    With a `host`, they are messages of that node, visible with and without `subgraphs=True`. They
    are `held` until `release` where the answer may still be discarded.

    Attributes:
        config: config for the reader's call.
        id: id of the message.
    """

    def __init__(
        self, config: RunnableConfig, host: RunnableConfig | None = None, *, held: bool = False
    ) -> None:
        self.config = merge_configs(config, {"callbacks": [Listener(self._hear)]})
        self._target = host or config
        self.id = f"answer-{uuid4()}"
        self._held: list[str] | None = [] if held else None

    def release(self, instead: str | None = None) -> None:
        """Stream the pieces that were kept, if there are any, or something `instead` of them."""
        held, self._held = self._held, None
        if held:
            said = "".join(held) if instead is None else instead
            self._hear(said, True)  # noqa: FBT003 - the listener's signature

    def _hear(self, piece: str, last: bool) -> None:  # noqa: FBT001 - the listener's signature
        if self._held is not None:
            self._held.append(piece)
            return
        message = AIMessageChunk(content=piece, id=self.id, chunk_position="last" if last else None)
        with set_config_context(self._target) as context:
            context.run(push_message, message, state_key=None)


def about(reading: Reading, run: Run, fold: Fold) -> FoldEvent:
    """Return what all events of a fold report."""
    return FoldEvent(
        agent=reading.name,
        task=run.task,
        question=fold["question"],
        fold=fold_name(fold["scope"]),
        source=fold["source"]["name"],
    )


def chunk_event(
    reading: Reading,
    run: Run,
    chunk: Chunk,
    before: Fold,
    after: Fold,
    update: FoldUpdate,
) -> ChunkEvent:
    """Return what an update read and changed."""
    progress, same = after["progress"], after["memory"] == before["memory"]
    closed = reading.has_update_gate and update.memory is None
    old, new = ([], []) if same else (fold["memory"].splitlines() for fold in (before, after))
    start, end = after["scope"]["start"], after["scope"]["end"]
    step, read = progress["step"], count_covered(progress, start, end)
    left = end - start - read if progress["again"] else end - chunk.end
    passed = read if progress["again"] else chunk.end - start
    return ChunkEvent(
        event="chunk",
        **about(reading, run, after),
        chunk=step,
        chunks=step + ceil(left * step / passed),
        position=passed,
        length=end - start,
        tokens=progress["tokens"],
        memory_tokens=update.tokens,
        gate="closed" if closed else "open",
        added=[line for line in new if line not in old],
        removed=[line for line in old if line not in new],
    )


def skip_event(reading: Reading, run: Run, chunk: Chunk, after: Fold) -> SkipEvent:
    """A chunk that was skipped, and the position after it."""
    start, end = after["scope"]["start"], after["scope"]["end"]
    return SkipEvent(
        event="skip",
        **about(reading, run, after),
        start=chunk.start,
        end=chunk.end,
        position=chunk.end - start,
        length=end - start,
    )


def edit_event(reading: Reading, run: Run, fold: Fold, memory: str) -> EditedEvent:
    """Return what a fold continues from after an edit of its memory."""
    return EditedEvent(
        event="edited",
        **about(reading, run, fold),
        memory=memory,
        version=str(fold["progress"]["version"]),
    )


def fallback_event(reading: Reading, run: Run, fold: Fold, further: Progress) -> FallbackEvent:
    """The return to skipped chunks, because the answer was not found without them."""
    start, end = fold["scope"]["start"], fold["scope"]["end"]
    read = count_covered(further, start, end)
    return FallbackEvent(
        event="fallback",
        **about(reading, run, fold),
        position=read,
        length=end - start,
    )
