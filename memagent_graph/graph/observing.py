"""Who is told what a reading does, beside the events: callback handlers of its run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.records import Fold
    from memagent_graph.readers.base import Answer


class Observer:
    """What a `BaseCallbackHandler` is besides, to be told; each method may be left out.

    In all of them `step` is the run id of a node's attempt: models that are called in it have it
    above them, and above it is the run of its fold. What a method raises ends the run.
    """

    def opened(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """A document is open; `fold` begins there, and `about` is the run's metadata."""

    def begins(self, step: UUID) -> None:
        """The reader is going to be asked; if it fails, this is all that is heard of it."""

    def refused(self, step: UUID, reply: int) -> None:
        """A reply became no memory: it was empty or over the budget, and another was asked for.

        Args:
            step: which attempt.
            reply: -1 for the last reply of the attempt, or of the `part` of it that is at work;
                -2 for the one before it.
        """

    def overwritten(self, step: UUID, before: Fold, after: Fold) -> None:
        """A chunk was read."""

    def merged(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """The memories of the segments were merged into that of `after`."""

    def answered(self, step: UUID, answer: Answer) -> None:
        """The answer was written."""


part: ContextVar[object] = ContextVar("part", default=None)
"""Which of several calls that one step makes at once is at work here."""


def observers(config: RunnableConfig) -> list[Observer]:
    """Those in a node's config."""
    handlers = getattr(config.get("callbacks"), "handlers", ())
    return [handler for handler in handlers if isinstance(handler, Observer)]


def step_of(config: RunnableConfig) -> UUID:
    """The run id of the node that has this config."""
    found: UUID = config["callbacks"].parent_run_id  # type: ignore[assignment,union-attr]
    return found
