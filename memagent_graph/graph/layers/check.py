"""Check: an overwrite with a fault is asked for once more; then the old notes stay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.evidence.align import join_memories
from memagent_graph.evidence.places import with_text
from memagent_graph.graph.events import is_exact
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.readers.base import Usage
from memagent_graph.readers.replies import adds_anything, with_lost_statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.reading import Advance, FoldStep
    from memagent_graph.graph.state import Fold


class Checked(TypedDict):
    """How many overwrites were asked for again because of a fault, and how many still had one."""

    asked: int
    faulty: int


class CheckLayer(Layer):
    """Let no reply overwrite notes that is none, or that lost most of them without need.

    What is wrong with a reply is the reader's to say (`Update.fault`). In recorded rollouts and
    with `exact_cuts`, where replies are taken word for word, faults are only counted. A step with
    an empty reply is repeated as after other failures; the last time, what was noted stays, and
    from then on at once. Where nothing has been noted yet, it ends the reading.
    """

    name = "check"

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step; if the reply has a fault, ask once more, and keep what was known."""
        call = step.call
        exact = is_exact(call.reading, call.config)
        try:
            update = await read(replace(step, exact=exact))
        except EmptyReplyError:
            # The server may have failed; a conversation's messages are kept for another try.
            fails = call.is_last or state_of(step.fold)["faulty"]
            if exact or call.reading.reader.standing or not (fails and step.memory.text):
                raise
            update = FoldUpdate(None, usage=Usage(1), fault="placeholder")
        if update.fault is None:
            return update
        first, before = update, state_of(step.fold)
        if not exact:
            update = await self._settle(step, update, read)
        asked = before["asked"] + (update.usage.calls > first.usage.calls)
        found = Checked(asked=asked, faulty=before["faulty"] + (update.fault is not None))
        return replace(update, layers={**update.layers, self.name: found})

    async def _settle(self, step: FoldStep, update: FoldUpdate, read: Advance) -> FoldUpdate:
        """The update to make of one with a fault; its `fault` is None if there is no more."""
        reading, first = step.call.reading, update
        if update.fault == "loss" and not update.unfinished:
            joined = with_lost_statements(step.memory.text, _text(update))
            if reading.tokenizer.count(joined) > reading.config.memory_tokens:
                return replace(update, fault=None)  # something had to go
        most, calls = step.fold["scope"]["calls"], step.fold["progress"]["calls"]
        if not update.unfinished and (most is None or calls + update.usage.calls + 1 <= most):
            try:
                update = await read(replace(step, fault=update.fault))
                usage = first.usage + update.usage
            except (EmptyReplyError, RefusalError):
                usage = first.usage + Usage(1)
            update = replace(update, usage=usage)
            if update.fault is None:
                return update
        return self._keep(step, update)

    def _keep(self, step: FoldStep, update: FoldUpdate) -> FoldUpdate:
        """The update that keeps the old notes, and what the reply adds to them if it is notes."""
        reading, before, text = step.call.reading, step.memory, _text(update)
        if update.fault != "loss" or not adds_anything(text, before.text, step.chunk.text):
            tokens = reading.tokenizer.count(before.text)
            return replace(update, memory=before, tokens=tokens, unfinished=False)
        text = with_lost_statements(before.text, text, first=not update.unfinished)
        memory = _join(before, update, text)
        memory, tokens, cut = reading.within_budget(memory)
        return replace(update, memory=memory, tokens=tokens, unfinished=update.unfinished or cut)

    def join(self, states: Sequence[Checked]) -> Checked:
        """Return the sum of the counts."""
        asked, faulty = (sum(state[key] for state in states) for key in ("asked", "faulty"))
        return Checked(asked=asked, faulty=faulty)


def state_of(fold: Fold) -> Checked:
    """Return the state of a fold's check."""
    found = fold["layers"].get(CheckLayer.name, {})
    return Checked(asked=found.get("asked", 0), faulty=found.get("faulty", 0))


def warn_of_faults(count: int, *, exact: bool) -> list[str]:
    """Return a warning about replies that were no notes; none if there were none."""
    if not count:
        return []
    replies = "1 reply was" if count == 1 else f"{count} replies were"
    then = (
        "taken anyway, since replies are taken word for word here"
        if exact
        else "asked for again, and what had been noted before was kept"
    )
    message = (
        f"{replies} no notes, or had lost most of them without need; {then}. A model that reads "
        "better, or larger chunks, may help."
    )
    return [message]


def _text(update: FoldUpdate) -> str:
    return "" if update.memory is None else update.memory.text


def _join(before: Memory, update: FoldUpdate, text: str) -> Memory:
    if update.memory is None:
        return before
    both = join_memories([before, update.memory])
    return replace(with_text(text, both), dropped=update.memory.dropped)
