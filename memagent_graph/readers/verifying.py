"""Let a verifier decide which statements of a memory are supported."""

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
"""What decides: a function of a passage and a statement that returns the probability, 0 to 1, that
the passage supports the statement, or `"cross-encoder/<hub id or folder>"`."""

CROSS_ENCODER = "cross-encoder/"
_SUPPORTED = 0.5
"""Probability from which on a statement counts as supported."""


class Verifier(Protocol):
    """Gives probabilities for several statements at once.

    Attributes:
        name: stands for it in fingerprints.
    """

    name: str

    async def prepare(self) -> None:
        """Awaited when a reading begins.

        Raises:
            ConfigurationError: There is no such model.
        """
        ...

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """For each passage with its statement, how likely the one supports the other, 0 to 1."""
        ...


class Called:
    """Asks a function, once for each statement, all at the same time.

    Args:
        function: of a passage and a statement; one that is not asynchronous runs in threads.
    """

    def __init__(self, function: Callable[[str, str], float | Awaitable[float]]) -> None:
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"
        self._function = function

    async def prepare(self) -> None:
        """Nothing is to be done."""

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """What the function returns.

        Raises:
            ConfigurationError: It returned no probability.
            ModelError: It failed.
        """
        return await asyncio.gather(*(self._ask(*pair) for pair in pairs))

    async def _ask(self, passage: str, statement: str) -> float:
        try:
            given: Any = await asyncio.to_thread(self._function, passage, statement)
            given = await given if isawaitable(given) else given
        except MemAgentError:
            raise
        except Exception as error:
            message = f"verify failed for {statement[:80]!r}: {error}"
            raise ModelError(message) from error
        try:
            probability = float(given)
        except (TypeError, ValueError):
            probability = -1.0
        if not 0 <= probability <= 1:
            message = f"verify returns a probability from 0 to 1, not {given!r}."
            raise ConfigurationError(message)
        return probability


def resolve_verifier(verify: Verify | None) -> Verifier | None:
    """Make a verifier of what names one.

    Raises:
        ConfigurationError: The string names none.
    """
    if verify is None:
        return None
    if not isinstance(verify, str):
        return Called(verify)
    if not verify.startswith(CROSS_ENCODER):
        message = f"verify is a function or {CROSS_ENCODER}<hub id or folder>, not {verify!r}."
        raise ConfigurationError(message)
    from memagent_graph.models.cross_encoder import CrossEncoder

    rest = verify.removeprefix(CROSS_ENCODER)
    # Most cross-encoders of the hub belong to an organisation of that name.
    return CrossEncoder(rest if "/" in rest else verify)


async def decide(aligned: Aligned, verifier: Verifier) -> Memory:
    """The memory, with the marks that a verifier gives to the notes that have a passage.

    Args:
        aligned: what is known of the memory by its words. Notes without a passage stay as they are.
        verifier: is asked for all others at once.

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
