"""What the graph's channels hold, and the events that a reading emits.

Whatever is checkpointed is plain (strings, numbers, lists, dicts) and does not grow with the
document: other types would warn on load, and come back as dicts in LangGraph's strict mode.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.channels import UntrackedValue
from typing_extensions import TypedDict

from memagent_graph.readers.base import Evidence, Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from langgraph.store.base import BaseStore

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.memory.writer import VersionWriter
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source

Stopped = Literal["end", "done", "max_calls", "deadline"]
"""Why a reading ended: the document's end, the reader had enough, or a budget was spent."""


class SourceRecord(TypedDict, total=False):
    """Identifies the document, and the memory that it goes into, from one run to the next.

    Attributes:
        name: what to call the document.
        digest: of its content.
        length: code points.
        uri: what opens it again, if anything does.
        memory_name: the named memory that this reading continues, if any.
        head: the version that it had when the reading began.
    """

    name: str
    digest: str
    length: int
    uri: str | None
    memory_name: str
    head: str | None


class Progress(TypedDict):
    """How far a reading got and what it cost; only `overwrite_memory` moves it.

    Attributes:
        position: code points read.
        step: chunks read.
        tokens: tokens of those chunks.
        calls: reader calls that returned.
        input_tokens: prompt tokens of those calls.
        output_tokens: completion tokens of those calls.
        seconds: time spent in them.
        cut: whether the memory was over its budget and lost its end.
        stopped: why the reading ended; None while it goes on.
        version: id of the memory's version, or of the chain's root; None without a store.
    """

    position: int
    step: int
    tokens: int
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float
    cut: bool
    stopped: Stopped | None
    version: str | None


class ReadingInput(TypedDict, total=False):
    """What a reading is asked.

    Attributes:
        question: what to find out.
        document: what to read: anything that `open_source` takes.
        memory: instead of a document, a version's id or a name: answer from that memory.
        memory_name: continue the memory of this name with the document, or begin it.
    """

    question: str
    document: Annotated[Any, UntrackedValue]
    memory: str
    memory_name: Annotated[str | None, UntrackedValue]


class ReadingOutput(TypedDict, total=False):
    """What a reading returns.

    Attributes:
        answer: the answer itself.
        response: the whole reply that the answer was taken from.
        memory: the final memory.
        evidence: where the memory's statements stand in the document, for readers that know:
            dicts with the fields of `Evidence`.
        citations: likewise, where the answer stands.
        usage: calls, input_tokens, output_tokens, seconds, and document_tokens read.
        coverage: share of the document that was read, 0 to 1.
        stopped: why reading ended: "end", "done", "max_calls" or "deadline".
        reader: name of the reader that answered.
        version: id of the final memory's version, None without a store.
        warnings: what went wrong without stopping the reading, such as an unreachable store.
    """

    answer: str | None
    response: str
    memory: str
    evidence: list[dict[str, Any]]
    citations: list[dict[str, Any]]
    usage: dict[str, Any]
    coverage: float
    stopped: Stopped
    reader: str
    version: str | None
    warnings: list[str]


class ReadingState(ReadingInput, ReadingOutput, total=False):
    """All channels. Document and chunk are left out of checkpoints, and so gone on a resume.

    Attributes:
        chunk: the `Chunk` being read.
        source: what identifies the document.
        places: the fields of `Evidence` as rows, which are half the size of dicts with text
            this short; each checkpoint has them.
        progress: how far reading got.
    """

    chunk: Annotated[Any, UntrackedValue]
    places: list[list[Any]]
    source: SourceRecord
    progress: Progress


@dataclass
class Run:
    """What lives as long as one call of the graph; handed to the nodes as its context.

    Attributes:
        document: the document as the caller gave it, None when only its record is known.
        source: that document, once opened.
        write: where events go; None until a node knows the run's own stream.
        started: when the call began, in seconds of the monotonic clock.
        config: of the node that runs.
        store: where versions go, None without one.
        bank: the versions in it.
        writer: what stores them in the background.
        fingerprint: of this run's chain; one of its own when memories are not reused.
        known: id and text of the version that was stored last.
        finished: the last version of a reading that ended and has no name.
        lost: races for a named memory's head that were lost.
        ahead: the chunk after the one that is being read, and where it begins.
    """

    document: Any = None
    source: Source | None = None
    write: Callable[[Any], None] | None = None
    started: float = field(default_factory=monotonic)
    config: RunnableConfig = field(default_factory=RunnableConfig)
    store: BaseStore | None = None
    bank: MemoryBank | None = None
    writer: VersionWriter | None = None
    fingerprint: str = ""
    known: tuple[str, str] | None = None
    finished: MemoryVersion | None = None
    lost: int = 0
    ahead: tuple[int, Future[Chunk | None]] | None = None

    def emit(self, event: OpenedEvent | ChunkEvent | AnswerEvent) -> None:
        """Send an event to whoever streams this run."""
        if self.write is None:
            return
        if sys.version_info >= (3, 11):
            self.write(event)
            return
        # LangGraph's writer looks for the node's config in a context variable, which async code
        # does not have before Python 3.11.
        with set_config_context(self.config) as context:
            context.run(self.write, event)


class OpenedEvent(TypedDict):
    """The document was opened.

    Attributes:
        length: code points.
        skipped: files of a folder that are hidden, not text, or lead out of it.
    """

    event: Literal["opened"]
    agent: str
    source: str
    length: int
    skipped: int


class ChunkEvent(TypedDict):
    """A chunk was read.

    Attributes:
        chunk: its number, counted from 1.
        chunks: how many there will be, estimated from those read so far.
        position: code points read, out of `length`.
        tokens: tokens read so far.
        memory_tokens: size of the memory now.
        added: lines that the memory gained.
        removed: lines that it lost.
    """

    event: Literal["chunk"]
    agent: str
    source: str
    chunk: int
    chunks: int
    position: int
    length: int
    tokens: int
    memory_tokens: int
    added: list[str]
    removed: list[str]


class AnswerEvent(TypedDict):
    """The answer was written."""

    event: Literal["answer"]
    agent: str
    source: str
    answer: str
    coverage: float


def known_evidence(state: ReadingState) -> list[Evidence]:
    """Evidence for what is still in the memory: a person may have edited it since."""
    memory = state["memory"]
    return [Evidence(*row) for row in state["places"] if row[0] in memory]


def add_usage(progress: Progress, usage: Usage) -> Progress:
    """Progress with the cost of one more step."""
    total = {key: progress[key] + value for key, value in asdict(usage).items()}  # type: ignore[literal-required]
    return {**progress, **total}  # type: ignore[typeddict-item]
