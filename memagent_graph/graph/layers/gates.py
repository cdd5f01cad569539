"""Gates: an update may leave the memory as it is, and a deadline ends the reading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.graph.events import is_exact
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import merge_spans
from memagent_graph.readers.base import Usage
from memagent_graph.readers.replies import adds_anything
from memagent_graph.readers.scope import names_something, scope
from memagent_graph.sync import LateError
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.graph.reading import Advance, FoldStep
    from memagent_graph.graph.state import Fold


class Gated(TypedDict):
    """The number of chunks for which the update gate was closed."""

    closed: int


class Gates(Layer):
    """Allow replies that leave the memory unchanged."""

    name = "gates"

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Open the gate, and count where it was closed."""
        update = await read(replace(step, update_gate=True))
        if update.memory is not None:
            return update
        gated = Gated(closed=count_closed(step.fold) + 1)
        return replace(update, layers={**update.layers, self.name: gated})

    def settings(self) -> list[object]:
        """Return that there is a gate."""
        return ["update gate"]

    def join(self, states: Sequence[Gated]) -> Gated:
        """Return the sum of the counts."""
        return Gated(closed=sum(state["closed"] for state in states))


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


_PASSAGES = 12
"""Number of best passages for the question that a section bears on it by."""
_SHARE = 0.5
"""Share of the best passage's score below which a passage does not count."""
_COVERED = 0.4
"""Share of the question's terms that a passage needs. Three in four passages of Natural Questions
with the answer have it, and one in twenty documents without one."""
_MOST_TRIED = 3
"""Most sections of a fold that are read once more to see whether the gate was closed rightly."""


class Trusted(TypedDict):
    """The state of trust.

    Attributes:
        gate: whether the update gate is trusted: None until the model has opened or misused it.
        tried: number of sections that were asked about once more without the gate.
        unread: spans before a misuse for which the gate was closed.
    """

    gate: bool | None
    tried: int
    unread: list[list[int]]


class Trust(Layer):
    """Switch off the update gate if the model misuses it.

    A gate that was closed for every section so far, also for one of which search says that it
    bears on the question, is tried: the section is asked about once more without it. Replies that
    are taken word for word, in recorded rollouts and with `exact_cuts`, are left alone.
    """

    name = "trust"

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step with the gate, if it is trusted."""
        call, trusted = step.call, state_of(step.fold)
        if is_exact(call.reading, call.config):
            return await read(step)
        gate = step.update_gate and trusted["gate"] is not False
        step = replace(step, update_gate=gate)
        update = await read(step)
        if gate and trusted["gate"] is None:
            update, trusted = await self._try(step, update, read, trusted)
        if trusted == state_of(step.fold):
            return update
        return replace(update, layers={**update.layers, self.name: trusted})

    async def _try(
        self, step: FoldStep, update: FoldUpdate, read: Advance, trusted: Trusted
    ) -> tuple[FoldUpdate, Trusted]:
        """Trust the gate if it was open; try it if it was closed where it should not have been."""
        if update.memory is not None:
            is_open = update.memory.text != step.memory.text
            opened = Trusted(**{**trusted, "gate": True, "unread": []})
            return update, opened if is_open else trusted
        chunk = step.chunk
        closed = merge_spans([*trusted["unread"], [chunk.start, chunk.end]])
        if not await self._is_tried(step, update, trusted):
            return update, Trusted(**{**trusted, "unread": closed})
        try:
            again = await read(replace(step, update_gate=False))
        except (EmptyReplyError, RefusalError):
            again = replace(update, usage=Usage(1))
        usage, text = update.usage + again.usage, again.memory and again.memory.text
        if text and adds_anything(text, step.memory.text, chunk.text):
            return replace(again, usage=usage), Trusted(**{**trusted, "gate": False})
        tried = Trusted(**{**trusted, "tried": trusted["tried"] + 1, "unread": closed})
        return replace(update, usage=usage), tried

    async def _is_tried(self, step: FoldStep, update: FoldUpdate, trusted: Trusted) -> bool:
        """Whether to ask about a section without the gate: it bears on the question."""
        most, calls = step.fold["scope"]["calls"], step.fold["progress"]["calls"]
        left = most is None or calls + update.usage.calls + 1 <= most
        if not left or trusted["tried"] >= _MOST_TRIED or not step.chunk.text.strip():
            return False
        if scope(step.question) == "all":
            return True
        from memagent_graph.text.index import aopen_index  # it takes a while to import numpy

        index = await aopen_index(step.chunk.source, step.call.seconds_left())
        found = index.find(step.question, _PASSAGES)
        if not found:  # it is vague, or in another language; else the text does not have its words
            return not names_something(step.question)
        asked = {*specific_terms(step.question)}
        least, source = _COVERED * len(asked), step.chunk.source
        return any(
            hit.score >= _SHARE * found[0].score
            and hit.start < step.chunk.end
            and step.chunk.start < hit.end
            and len(asked.intersection(specific_terms(source.read(hit.start, hit.end - hit.start))))
            >= least
            for hit in found
        )

    def join(self, states: Sequence[Trusted]) -> Trusted:
        """Return the state of all: trusted if no one misused it."""
        gates = {state["gate"] for state in states}
        unread = [span for state in states if state["gate"] is False for span in state["unread"]]
        return Trusted(
            gate=False if False in gates else True if True in gates else None,
            tried=sum(state["tried"] for state in states),
            unread=sorted(unread),
        )


def state_of(fold: Fold) -> Trusted:
    """Return the state of a fold's trust."""
    found = fold["layers"].get(Trust.name, {})
    return Trusted(
        gate=found.get("gate"),
        tried=found.get("tried", 0),
        unread=found.get("unread", []),
    )


def unread_spans(fold: Fold) -> list[list[int]]:
    """Return the spans for which a gate was closed that turned out to be misused."""
    trusted = state_of(fold)
    return trusted["unread"] if trusted["gate"] is False else []


def warn_of_misuse(fold: Fold) -> list[str]:
    """Return a warning about a gate that was switched off; none if none was."""
    if state_of(fold)["gate"] is not False:
        return []
    message = (
        'The model replied "unchanged" to sections that bear on the question: the update gate was '
        "switched off, and what had been passed over was read. Leave update_gate off for this "
        "model."
    )
    return [message]
