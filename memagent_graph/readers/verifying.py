"""Let a verifier, a function or a cross-encoder, decide which statements are supported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol

from memagent_graph.errors import ConfigurationError, MemAgentError, ModelError
from memagent_graph.readers.alignment import remember

if TYPE_CHECKING:
    from memagent_graph.readers.alignment import Aligned
    from memagent_graph.readers.base import Memory

Verify = str | Callable[[str, str], float | Awaitable[float]]
"""A function (passage, statement) that returns the probability, 0 to 1, that the passage supports
the statement, or `"cross-encoder/<hub id or folder>"`."""

CROSS_ENCODER = "cross-encoder/"
_SUPPORTED = 0.5
"""Least probability with which a statement counts as supported."""


class Verifier(Protocol):
    """Computes probabilities for several statements at once.

    Attributes:
        name: its name in fingerprints.
    """

    name: str

    async def prepare(self) -> None:
        """Load or check the model; awaited when a reading begins.

        Raises:
            ConfigurationError: There is no such model.
        """
        ...

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Return, for each (passage, statement), the probability of support, 0 to 1."""
        ...


class Called:
    """A verifier that calls a function for each statement, all at the same time.

    Args:
        function: takes a passage and a statement; a synchronous one runs in threads.
    """

    def __init__(self, function: Callable[[str, str], float | Awaitable[float]]) -> None:
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"
        self._function = function

    async def prepare(self) -> None:
        """Do nothing: a function needs no preparation."""

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Call the function for each (passage, statement).

        Raises:
            ConfigurationError: It returned something else than a probability.
            ModelError: It raised an error.
        """
        return await asyncio.gather(*(self._ask(*pair) for pair in pairs))

    async def _ask(self, passage: str, statement: str) -> float:
        try:
            given: Any = await asyncio.to_thread(self._function, passage, statement)
            given = await given if isawaitable(given) else given
        except MemAgentError:
            raise
        except Exception as error:
            message = f"The verify function failed for {statement[:80]!r}: {error}"
            raise ModelError(message) from error
        try:
            probability = float(given)
        except (TypeError, ValueError):
            probability = -1.0
        if not 0 <= probability <= 1:
            message = f"verify must return a probability from 0 to 1, not {given!r}."
            raise ConfigurationError(message)
        return probability


def resolve_verifier(verify: Verify | None) -> Verifier | None:
    """Make a verifier from a function or a string; None stays None.

    Raises:
        ConfigurationError: The string does not start with "cross-encoder/".
    """
    if verify is None:
        return None
    if not isinstance(verify, str):
        return Called(verify)
    if not verify.startswith(CROSS_ENCODER):
        message = f"verify= takes a function or {CROSS_ENCODER}<hub id or folder>, not {verify!r}."
        raise ConfigurationError(message)
    from memagent_graph.models.cross_encoder import CrossEncoder

    rest = verify.removeprefix(CROSS_ENCODER)
    # Most cross-encoders on the hub belong to an organization of that name.
    return CrossEncoder(rest if "/" in rest else verify)


async def decide(aligned: Aligned, verifier: Verifier) -> Memory:
    """Return the memory, with notes marked as the verifier decides.

    Args:
        aligned: the memory, aligned by words. Notes without a passage keep their marks.
        verifier: judges all other notes in one call.

    Raises:
        ModelError: The verifier failed.
    """
    asked = [note for note in aligned.notes if note.passage]
    if not asked:
        return aligned.memory
    found = await verifier.probabilities([(note.passage, note.text) for note in asked])
    likely = dict(zip((note.start for note in asked), found, strict=True))
    judged = []
    for note in aligned.notes:
        if note.start not in likely:
            judged.append(note)
        elif likely[note.start] >= _SUPPORTED:
            judged.append(replace(note, state="supported", missing=()))
        elif note.is_new:  # else the older note stays as it was
            judged.append(replace(note, state="unsupported"))
    return remember(aligned.memory.text, aligned.before, judged)
