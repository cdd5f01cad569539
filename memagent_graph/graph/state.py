"""The graph's input, output and channels, and the context of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, UntrackedValue
from langgraph.errors import EmptyChannelError
from typing_extensions import TypedDict

from memagent_graph.graph.records import (
    Fold,
    Progress,
    Row,
    SourceRecord,
    Stopped,
)
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.text.chunks import Chunk  # noqa: TC001 - LangGraph reads the annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph.store.base import BaseStore

    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.events import Event
    from memagent_graph.graph.versions import Chain

Changes = dict[str, Any]
"""The channels of the state that a node changes."""
Gathering = TypeVar("Gathering")


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


def _gathered(
    answers: list[QuestionAnswer], more: list[QuestionAnswer] | None
) -> list[QuestionAnswer]:
    """Records in the order of their questions; None removes them."""
    return [] if more is None else sorted([*answers, *more], key=lambda record: record["number"])


def _moved(folds: Folds, more: Mapping[str, Fold | None]) -> Folds:
    """The latest fold of each segment, by name; None removes one."""
    return {name: fold for name, fold in {**folds, **more}.items() if fold is not None}


class Gathered(BinaryOperatorAggregate[Gathering]):
    """A channel that collects values of several tasks, and is empty with a single task."""

    def get(self) -> Gathering:
        """Return the collected values.

        Raises:
            EmptyChannelError: There are none yet.
        """
        if not self.value:
            raise EmptyChannelError
        found: Gathering = self.value
        return found

    def is_available(self) -> bool:
        """Whether there are values."""
        return bool(self.value)


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
    """The cost of a reading.

    Attributes:
        calls: see `Usage`.
        gated: number of chunks for which the update gate was closed.
        recalled: number of passages and memories that were shown again.
        input_tokens: see `Usage`.
        output_tokens: see `Usage`.
        seconds: see `Usage`.
        document_tokens: tokens of the chunks that were read.
    """

    calls: int
    gated: int
    recalled: int
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
        usage: the cost of the reading.
        coverage: share of the document that was read, 0 to 1.
        skipped: spans of the document that were skimmed and read in no round: starts and ends in
            code points.
        stopped: why reading ended: "end", "done", "max_calls" or "deadline".
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
    usage: Cost
    coverage: float
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

    answers: Annotated[list[QuestionAnswer], Gathered(list, _gathered)]


class ReadingState(ReadingInput, ReadingOutput, total=False):
    """All channels. Document and chunk are not checkpointed, and so are missing on a resume.

    Attributes:
        chunk: the chunk being read.
        folds: folds of the segments, while they are read.
        source: see `Fold`.
        places: see `Fold`.
        progress: see `Fold`.
    """

    chunk: Annotated[Chunk | None, UntrackedValue]
    folds: Annotated[Folds, Gathered(dict, _moved)]
    source: SourceRecord
    places: list[Row]
    progress: Progress


class QuestionState(TypedDict):
    """The input of the graph for one of several questions.

    Attributes:
        number: number of the question, from 0.
        question: the question.
        source: identifies the document, for this question's fold.
        version: the stored memory to answer from; None to read the document.
    """

    number: int
    question: str
    source: SourceRecord
    version: str | None


@dataclass
class Run:
    """The context of one call of the graph, passed to all nodes.

    Attributes:
        document: the document as given by the caller; None if only its record is known.
        write: writes events to the stream; None until a node knows the run's stream.
        started: time when the call began, in seconds of the monotonic clock.
        config: config of the current node.
        store: store of the versions; None without one.
        namespace: namespace of the versions in the store.
        chains: versions of each fold, by name of the fold.
        cutter: cuts the chunks; None until the document is open.
        opening: held while the document is opened again.
        task: id of the host's task that the graph runs in; "" without a host.
        host: config of the host's node, to stream the answer as its message.
    """

    document: Any = None
    write: Callable[[object], None] | None = None
    started: float = field(default_factory=monotonic)
    config: RunnableConfig = field(default_factory=RunnableConfig)
    store: BaseStore | None = None
    namespace: tuple[str, ...] = NAMESPACE
    chains: dict[str, Chain] = field(default_factory=dict)
    cutter: Cutter | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)
    task: str = ""
    host: RunnableConfig | None = None

    def emit(self, event: Event) -> None:
        """Send an event to the stream of this run."""
        if self.write is not None:
            self.write(event)


def fold_of(state: ReadingState) -> Fold:
    """Return the fold in the graph's channels."""
    return Fold(
        question=state["question"],
        source=state["source"],
        memory=state["memory"],
        places=state["places"],
        progress=state["progress"],
    )
