"""Hold: a fold waits while its memory is held, and continues from what is stored for it then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memagent_graph.graph.fold import Layer
from memagent_graph.graph.sharing import HeldUpError
from memagent_graph.graph.state import memory_of

if TYPE_CHECKING:
    from memagent_graph.graph.fold import Advance, FoldStep, FoldUpdate


class HoldLayer(Layer):
    """Wait before a step while the memory is held."""

    name = "hold"
    needs_store = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step when nobody holds the memory, from an edit of it if there is one."""
        chain, given = step.call.chain, step.fold
        assert chain is not None  # noqa: S101 - the layer needs a store
        while True:
            left = step.call.seconds_left()
            late = left is not None and left <= 0
            fold = step.fold if late else await chain.wait_while_held(step.fold)
            if fold is not step.fold:
                step = replace(step, fold=fold, memory=memory_of(fold))
            try:
                update = await read(step)
            except HeldUpError:
                continue
            return update if fold is given else replace(update, fold=fold)
