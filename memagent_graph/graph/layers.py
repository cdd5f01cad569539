"""The layers around a step of the fold: one feature each, none of which knows another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.graph.fold import CheckLayer, Versions
from memagent_graph.graph.passages import Skim, names_something, scope
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import merge_spans
from memagent_graph.readers.base import Usage
from memagent_graph.readers.replies import adds_anything
from memagent_graph.sync import LateError
from memagent_graph.text.index import aopen_index
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.graph.reading import Advance, FoldStep, Reading
    from memagent_graph.graph.state import Fold


def add_layers(reading: Reading) -> Reading:
    """Return a reading with the layers that its settings ask for."""
    return replace(reading, layers=tuple(layers_of(reading)))


def layers_of(reading: Reading) -> list[Layer]:
    """Return the layers that the settings of a reading ask for, the outermost first."""
    config = reading.config
    return [
        *([Deadline()] if config.deadline is not None else ()),
        *([Skim(config)] if config.skim is not None else ()),
        Versions(),
        *([Trust()] if reading.is_watched else ()),
        *([CheckLayer()] if reading.reader.shortens else ()),
    ]


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
    needs_gate = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step with the gate, if it is trusted."""
        call, trusted = step.call, state_of(step.fold)
        if call.reading.is_exact(call.config):
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
        chunk, tried = step.chunk, trusted["tried"]
        if update.memory is not None:
            is_open = update.memory.text != step.memory.text
            return update, Trusted(gate=True, tried=tried, unread=[]) if is_open else trusted
        closed = merge_spans([*trusted["unread"], [chunk.start, chunk.end]])
        if not await self._is_tried(step, update, trusted):
            return update, Trusted(gate=None, tried=tried, unread=closed)
        try:
            again = await read(replace(step, update_gate=False))
        except (EmptyReplyError, RefusalError):
            again = replace(update, usage=Usage(1))
        usage, text = update.usage + again.usage, again.memory and again.memory.text
        if text and adds_anything(text, step.memory.text, chunk.text):
            return replace(again, usage=usage), Trusted(**{**trusted, "gate": False})
        return replace(update, usage=usage), Trusted(gate=None, tried=tried + 1, unread=closed)

    async def _is_tried(self, step: FoldStep, update: FoldUpdate, trusted: Trusted) -> bool:
        """Whether to ask about a section without the gate: it bears on the question."""
        most, calls = step.fold["scope"]["calls"], step.fold["progress"]["calls"]
        left = most is None or calls + update.usage.calls + 1 <= most
        if not left or trusted["tried"] >= _MOST_TRIED or not step.chunk.text.strip():
            return False
        if scope(step.question) == "all":
            return True
        index = await aopen_index(step.chunk.source, step.call.seconds_left())
        found = index.find(step.question, _PASSAGES)
        if not found:  # it is vague, or in another language; else the text does not have its words
            return not names_something(step.question)
        asked, chunk = {*specific_terms(step.question)}, step.chunk
        near = (
            chunk.source.read(hit.start, hit.end - hit.start)
            for hit in found
            if hit.score >= _SHARE * found[0].score
            and hit.start < chunk.end
            and chunk.start < hit.end
        )
        least = _COVERED * len(asked)
        return any(len(asked.intersection(specific_terms(text))) >= least for text in near)

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
    found = fold["layers"].get(Trust.name, {"gate": None, "tried": 0, "unread": []})
    return Trusted(gate=found["gate"], tried=found["tried"], unread=found["unread"])


def unread_spans(fold: Fold) -> list[list[int]]:
    """Return the spans for which a gate was closed that turned out to be misused."""
    trusted = state_of(fold)
    return trusted["unread"] if trusted["gate"] is False else []


def warn_of_misuse(fold: Fold) -> list[str]:
    """Return a warning about a gate that was switched off; none if none was."""
    message = (
        'The model replied "unchanged" to sections that bear on the question: the update gate was '
        "switched off, and what had been passed over was read. Leave update_gate off for this "
        "model."
    )
    return [message] if state_of(fold)["gate"] is False else []
