"""Observers of a reading: callback handlers that see its folds and replies."""

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
    """A mixin for a `BaseCallbackHandler` that observes readings; all methods are optional.

    `step` is the run id of a node's attempt: model calls in it are its children, and its parent is
    the run of its fold. An error in a method ends the run.
    """

    def opened(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """The document was opened; `fold` begins, and `about` is the run's metadata."""

    def begins(self, step: UUID) -> None:
        """The reader is about to be called; if it fails, no further method is called."""

    def refused(self, step: UUID, reply: int) -> None:
        """A reply was refused, because it was empty or over the budget; another was asked for.

        Args:
            step: the attempt.
            reply: -1 for the last reply of the attempt, or of its current `part`; -2 for the one
                before.
        """

    def overwritten(self, step: UUID, before: Fold, after: Fold) -> None:
        """A chunk was read."""

    def merged(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """The memories of the segments were merged into that of `after`."""

    def answered(self, step: UUID, answer: Answer) -> None:
        """The answer was written."""


part: ContextVar[object] = ContextVar("part", default=None)
"""The current one of several concurrent calls of a step."""


def observers(config: RunnableConfig) -> list[Observer]:
    """Return the observers in a node's config."""
    handlers = getattr(config.get("callbacks"), "handlers", ())
    return [handler for handler in handlers if isinstance(handler, Observer)]


def step_of(config: RunnableConfig) -> UUID:
    """Return the run id of the node with this config."""
    found: UUID = config["callbacks"].parent_run_id  # type: ignore[assignment,union-attr]
    return found
