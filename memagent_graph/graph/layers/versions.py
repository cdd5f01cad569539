"""Versions: a stored version is taken, one that another reading makes is awaited, or it is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from memagent_graph.graph.fold import Layer, apply_update
from memagent_graph.graph.state import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.graph.fold import Advance, FoldStep, FoldUpdate


class VersionRecord(TypedDict, total=False):
    """The state of a fold's versions.

    Attributes:
        made: record of its last version without the memory, for a run that is killed before that
            is stored; see `MemoryVersion.to_stub`.
    """

    made: dict[str, Any]


class Versions(Layer):
    """Store each memory as a version, and take stored ones instead of reading again."""

    name = VERSIONS
    needs_store = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the version after the chunk from the store, or read it and store it."""
        chain = step.call.chain
        assert chain is not None  # noqa: S101 - the layer needs a store
        step = replace(step, memory=await chain.open(step.fold))
        update = await chain.follow(step.fold, step.chunk, step.recalled)
        if update is None:
            async with chain.follower.beat():
                update = await read(step)
            if other := await chain.find_other():  # another reading had stored the memory first
                async with chain.follower.beat():
                    update = await read(replace(step, memory=other))
                if update.memory is None:
                    update = replace(update, memory=other)
        gated = step.update_gate and update.memory is None
        after = apply_update(step.fold, step.chunk, update)
        kept = chain.keep(after, step, update, gated=gated)
        layers = {**update.layers, self.name: kept["layers"][self.name]}
        return replace(update, version=kept["progress"]["version"], layers=layers)

    def join(self, states: Sequence[VersionRecord]) -> VersionRecord:
        """Return nothing: what is merged from segments becomes a version of its own."""
        return VersionRecord()
