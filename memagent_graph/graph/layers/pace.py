"""Pace: folds over the same chunks stay close, so that each chunk is cut and cached once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.graph.fold import Layer

if TYPE_CHECKING:
    from memagent_graph.graph.fold import Advance, FoldStep, FoldUpdate


class Pace(Layer):
    """Wait for folds that are far behind, for a few seconds at most."""

    name = "pace"
    needs_others = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Wait for the fold's turn, and take the step."""
        if step.call.cutter is not None:
            await step.call.cutter.turn(step.fold, step.call.seconds_left())
        return await read(step)
