"""Deadline: a fold ends when its time is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.graph.fold import FoldUpdate, Layer
from memagent_graph.sync import LateError

if TYPE_CHECKING:
    from memagent_graph.graph.fold import Advance, FoldStep


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
