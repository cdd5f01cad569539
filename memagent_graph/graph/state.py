"""What goes into the graph and comes out of it, what its channels hold, and what a call has."""

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
from memagent_graph.memory.records import NAMESPACE
from memagent_graph.text.chunking import Chunk  # noqa: TC001 - LangGraph reads the annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph.store.base import BaseStore

    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.events import Event
    from memagent_graph.graph.versions import Chain

Gathering = TypeVar("Gathering")


class ReadingInput(TypedDict, total=False):
    """What a reading is asked.

    Attributes:
        question: what to find out.
        questions: instead of one, several, for each of which the document is read at the same time.
        document: what to read: anything that `open_source` takes.
        version: instead of a document, the id of a stored memory, or its name: answer from it.
        memory_name: continue the memory of this name with the document, or begin it.
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
    """Records in the order of their questions; None forgets them."""
    return [] if more is None else sorted([*answers, *more], key=lambda record: record["number"])


def _moved(folds: Folds, more: Mapping[str, Fold | None]) -> Folds:
    """The segments' folds by their names, each as it was last; None forgets one."""
    return {name: fold for name, fold in {**folds, **more}.items() if fold is not None}


class Gathered(BinaryOperatorAggregate[Gathering]):
    """Holds what several tasks bring; nothing, where there is one task."""

    def get(self) -> Gathering:
        """What they brought.

        Raises:
            EmptyChannelError: Nothing yet.
        """
        if not self.value:
            raise EmptyChannelError
        found: Gathering = self.value
        return found

    def is_available(self) -> bool:
        """Whether there is anything."""
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
    """What a reading cost.

    Attributes:
        gated: chunks for which no memory was written, by the update gate.
        recalled: passages and memories that were shown again.
        document_tokens: of the chunks that were read; the others are those of `Usage`.
    """

    calls: int
    gated: int
    recalled: int
    input_tokens: int
    output_tokens: int
    seconds: float
    document_tokens: int


class Answered(TypedDict, total=False):
    """What a reading returns for a question.

    Attributes:
        answer: the answer itself.
        response: the whole reply that the answer was taken from.
        structured_response: with `response_format`, the answer in that shape: from `invoke` an
            instance of the class that was named, in streams and checkpoints what JSON has for it.
        memory: the final memory.
        evidence: where the memory's statements stand in the document, as far as that is known.
        citations: likewise, where the answer stands.
        usage: what it cost.
        coverage: share of the document that was read, 0 to 1.
        skipped: the spans of it that were skimmed and read in no round: starts and ends in code
            points.
        stopped: why reading ended: "end", "done", "max_calls" or "deadline".
        reader: name of the reader that answered.
        version: id of the final memory's version, None without a store.
        warnings: what went wrong without stopping the reading, such as an unreachable store.
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
    """What a reading returns for one of several questions.

    Attributes:
        number: of the question, from 0.
        question: what was asked.
        error: why it failed; None if it did not.
        error_type: name of the error's type, "ModelError" for example.
    """

    number: int
    question: str
    error: str | None
    error_type: str | None


class ReadingOutput(Answered, total=False):
    """What a reading returns.

    Attributes:
        answers: for several questions: one for each, in their order.
    """

    answers: Annotated[list[QuestionAnswer], Gathered(list, _gathered)]


class ReadingState(ReadingInput, ReadingOutput, total=False):
    """All channels. Document and chunk are left out of checkpoints, and so gone on a resume.

    Attributes:
        chunk: the `Chunk` being read.
        source: as `places` and `progress`, of the `Fold`.
        folds: of the segments, while they are read.
    """

    chunk: Annotated[Chunk | None, UntrackedValue]
    folds: Annotated[Folds, Gathered(dict, _moved)]
    source: SourceRecord
    places: list[Row]
    progress: Progress


class QuestionState(TypedDict):
    """One of several questions, as it is sent to be answered.

    Attributes:
        number: counted from 0.
        question: what to find out.
        source: what identifies the document, for this question's fold.
        version: the stored memory to answer from, if nothing is read.
    """

    number: int
    question: str
    source: SourceRecord
    version: str | None


@dataclass
class Run:
    """What lives as long as one call of the graph; handed to the nodes as its context.

    Attributes:
        document: the document as the caller gave it, None when only its record is known.
        write: where events go; None until a node knows the run's own stream.
        started: when the call began, in seconds of the monotonic clock.
        config: of the node that runs.
        store: where versions go, None without one.
        namespace: labels under which they are in it.
        chains: the versions of each fold that is read, by its name, once they were asked for.
        cutter: what the chunks come from, once the document is open.
        opening: who opens the document again.
        task: of the host's node in which this runs; empty at the top.
        host: config of that node, by which its host hears the answer.
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
    """The fold in the graph's channels."""
    return Fold(
        question=state["question"],
        source=state["source"],
        memory=state["memory"],
        places=state["places"],
        progress=state["progress"],
    )
