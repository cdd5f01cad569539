"""Gates: an update may leave the memory as it is, or end the reading, and so does a deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.readers.scope import scope
from memagent_graph.sync import LateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.reading import Advance, FoldStep
    from memagent_graph.graph.state import Fold


class Gated(TypedDict):
    """The state of the gates.

    Attributes:
        closed: number of chunks for which the update gate was closed.
    """

    closed: int


class Gates(Layer):
    """Allow replies that leave the memory unchanged, and replies that say it is enough.

    Args:
        config: gives `exit`.
        update_gate: whether a reply may be that the chunk adds nothing.
    """

    name = "gates"

    def __init__(self, config: ReadingConfig, *, update_gate: bool) -> None:
        self._update_gate, self._exit = update_gate, config.exit

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Open the gates, and count closed update gates."""
        exits = self._may_exit(step.question) and step.fold["progress"]["enough"] is None
        update = await read(replace(step, update_gate=self._update_gate, exit_gate=exits))
        if not self._update_gate or update.memory is not None:
            return update
        gated = Gated(closed=count_closed(step.fold) + 1)
        return replace(update, layers={**update.layers, self.name: gated})

    def settings(self) -> list[object]:
        """Return which gates there are."""
        gate = ["update gate"] if self._update_gate else []
        return [*gate, *([f"exit {self._exit}"] if self._exit != "never" else ())]

    def join(self, states: Sequence[Gated]) -> Gated:
        """Return the sum of the counts."""
        return Gated(closed=sum(state["closed"] for state in states))

    def _may_exit(self, question: str) -> bool:
        """Whether reading for a question may end before the document does."""
        return self._exit == "model" or (self._exit == "safe" and scope(question) == "one")


class Deadline(Layer):
    """End the fold, with the memory so far, once the deadline has passed."""

    name = "deadline"

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step if it ends in time."""
        left = step.call.seconds_left()
        if left is not None and left <= 0:
            return FoldUpdate(None, chunk="left", stopped="deadline")
        try:
            return await read(step)
        except (LateError, TimeoutError):
            return FoldUpdate(None, chunk="left", stopped="deadline")


def count_closed(fold: Fold) -> int:
    """Return the number of a fold's chunks for which the update gate was closed."""
    found: int = fold["layers"].get(Gates.name, {"closed": 0})["closed"]
    return found
