"""What a reading reports: its events, in `stream_mode="custom"`, and warnings on its output."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables.config import merge_configs, set_config_context
from langgraph.graph.message import push_message
from typing_extensions import TypedDict

from memagent_graph.evidence.statements import leave_out
from memagent_graph.graph.reading import fold_name
from memagent_graph.graph.state import count_covered
from memagent_graph.models.reply import Listener
from memagent_graph.templates import plural
from memagent_graph.text.source import sources_of, warnings_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory, Unsupported
    from memagent_graph.graph.reading import FoldUpdate, Reading
    from memagent_graph.graph.state import Fold, How, Progress, Run
    from memagent_graph.readers.base import Answer
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import OpenedSource, Source


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


class AnswerEvent(FoldEvent):
    """The answer was written; for the fields, see `Answered`."""

    event: Literal["answer"]
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


def open_event(reading: Reading, run: Run, source: Source) -> OpenedEvent:
    """Return what was opened and what was skipped."""
    return OpenedEvent(
        event="opened",
        agent=reading.name,
        task=run.task,
        source=source.name,
        length=source.length,
        skipped=getattr(source, "skipped", 0),
        warnings=[*warnings_of(source)],
        sources=sources_of(source),
    )


def _about(reading: Reading, run: Run, fold: Fold) -> FoldEvent:
    name, source, question = fold_name(fold["scope"]), fold["source"]["name"], fold["question"]
    return FoldEvent(agent=reading.name, task=run.task, question=question, fold=name, source=source)


def _span(fold: Fold) -> tuple[int, int]:
    return fold["scope"]["start"], fold["scope"]["end"]


def chunk_event(
    reading: Reading, run: Run, chunk: Chunk, before: Fold, after: Fold, update: FoldUpdate
) -> ChunkEvent:
    """Return what an update read and changed."""
    progress, same = after["progress"], after["memory"] == before["memory"]
    closed = reading.has_update_gate and update.memory is None
    old, new = ([], []) if same else (fold["memory"].splitlines() for fold in (before, after))
    start, end = _span(after)
    step, read = progress["step"], count_covered(progress, start, end)
    left = end - start - read if progress["again"] else end - chunk.end
    passed = read if progress["again"] else chunk.end - start
    return ChunkEvent(
        event="chunk",
        **_about(reading, run, after),
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
    """Return a chunk that was skipped, and the position after it."""
    (start, end), about = _span(after), _about(reading, run, after)
    first, last = chunk.start, chunk.end
    position, length = last - start, end - start
    return SkipEvent(event="skip", **about, start=first, end=last, position=position, length=length)


def edit_event(reading: Reading, run: Run, fold: Fold, memory: str) -> EditedEvent:
    """Return what a fold continues from after an edit of its memory."""
    about, version = _about(reading, run, fold), str(fold["progress"]["version"])
    return EditedEvent(event="edited", **about, memory=memory, version=version)


def fallback_event(reading: Reading, run: Run, fold: Fold, further: Progress) -> FallbackEvent:
    """Return the way back to skipped chunks, because the answer was not found without them."""
    (start, end), about = _span(fold), _about(reading, run, fold)
    position = count_covered(further, start, end)
    return FallbackEvent(event="fallback", **about, position=position, length=end - start)


def merge_event(reading: Reading, run: Run, fold: Fold, memories: int, calls: int) -> MergeEvent:
    """Return the merge of so many memories into that of a fold."""
    about, tokens = _about(reading, run, fold), reading.tokenizer.count(fold["memory"])
    return MergeEvent(event="merge", **about, memories=memories, calls=calls, memory_tokens=tokens)


def answer_event(
    reading: Reading, run: Run, fold: Fold, answer: str, how: How, coverage: float
) -> AnswerEvent:
    """Return the answer of a fold."""
    about = _about(reading, run, fold)
    return AnswerEvent(event="answer", **about, answer=answer, how=how, coverage=coverage)


_SHOWN = 80
"""Code points quoted of a statement in a warning."""


def drop_from_answer(answer: Answer) -> Answer:
    """Return the answer without its unsupported statements; a structured one stays as it is."""
    if not answer.unsupported or answer.structured is not None:
        return answer
    texts = {item.text for item in answer.unsupported}
    final = "" if answer.final in texts else leave_out(answer.final, texts)
    if final.strip():
        return replace(answer, final=final)
    return replace(answer, final=NOTHING_SUPPORTED, found=False, evidence=())


NOTHING_SUPPORTED = "Nothing in what was read supports an answer."
"""The answer in place of one of which every statement was dropped."""


def warn_of_answer(answer: Answer, *, dropped: bool) -> list[str]:
    """Return a warning about an answer of which the memory does not hold all."""
    if not answer.unsupported:
        return []
    first = _quote(answer.unsupported[0])
    if dropped:
        return [f"Left out of the answer, without support in what was read: {first}."]
    if answer.is_beside:
        return [f"The text that the answer comes from does not speak of the question: {first}."]
    what = "The answer has" if answer.found is False else "A statement of the answer has"
    return [f"{what} no support in what was read: {first}."]


def _quote(item: Unsupported) -> str:
    """Return the beginning of a statement in quotes, with its names that have no support."""
    quoted = item.text if len(item.text) <= _SHOWN else f"{item.text[: _SHOWN - 1]}…"
    names = f" ({', '.join(item.missing)})" if item.missing else ""
    return f'"{quoted}"{names}'


def warn(memory: Memory) -> list[str]:
    """Return warnings about unsupported statements in the final memory, kept or left out."""
    warnings, kept, dropped = [], memory.unsupported, memory.dropped
    read = "support in what was read"
    if kept:
        has, end = ("has", ".") if len(kept) == 1 else ("have", ", for example.")
        said = f"{plural(len(kept), 'statement')} of the memory {has} no {read}"
        warnings.append(f"{said}: {_quote(kept[0])}{end}")
    if dropped:
        were = "was" if dropped == 1 else "were"
        said = f"{plural(dropped, 'statement')} {were} left out of the memory, without {read}."
        warnings.append(said)
    return warnings
