"""Let a function or a decision model decide which statements are supported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable

from memagent_graph.config import is_decision_model
from memagent_graph.errors import ConfigurationError, MemAgentError, ModelError
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.evidence.align import Aligned

Verify = Callable[[str, str], float | Awaitable[float]] | Runnable[Any, Any]
"""A function (passage, statement) that returns the probability, 0 to 1, that the passage supports
the statement; or a decision model of LangChain."""

_SUPPORTED = 0.5
"""Least probability with which a statement counts as supported."""


class Verifier:
    """Calls a function for each statement, all at the same time; a synchronous one in threads.

    `name` is its name in fingerprints: the function's own, unless one is given.
    """

    def __init__(
        self, function: Callable[[str, str], float | Awaitable[float]], name: str | None = None
    ) -> None:
        own = f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"
        self.name = name or own
        self._function = function

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Return, for each (passage, statement), the probability of support, 0 to 1."""
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
        with suppress(TypeError, ValueError):
            if 0 <= (probability := float(given)) <= 1:
                return probability
        message = f"verify must return a probability from 0 to 1, not {given!r}."
        raise ConfigurationError(message)


def resolve_verifier(verify: Verify | None) -> Verifier | None:
    """Make a verifier from a function or a decision model; None stays None."""
    if verify is None:
        return None
    if is_decision_model(verify):
        name = f"decision {type(verify)} {getattr(verify, 'model', '')}"
        return Verifier(partial(_choose_support, verify), name)
    if callable(verify):
        return Verifier(verify)
    message = f"verify= takes a function or a decision model, not {verify!r}."
    raise ConfigurationError(message)


async def choose(model: Any, state: Mapping[str, str], chosen: str, other: str) -> float:
    """Return the probability, 0 to 1, that a decision model gives the first of two statements.

    Asked for a yes or no, many a model says yes to a statement and to its negation. The model is a
    `langchain_core.decisions.BaseDecisionModel`; the state has the texts that they are about.
    """
    from langchain_core.decisions import Choice

    which = "Which of the two statements is true?"
    asked = Choice(instructions=which, criteria={"first": chosen, "second": other})
    try:
        response = await model.ainvoke({"state": {**state}, "questions": {"which": asked}})
        return float(response.choices["which"].probabilities["first"])
    except Exception as error:
        message = f"The decision model failed: {error}"
        raise ModelError(message) from error


async def _choose_support(model: Any, passage: str, statement: str) -> float:
    chosen, other = (f"The passage {says}: {statement}" for says in ("says", "does not say"))
    return await choose(model, {"passage": passage}, chosen, other)


async def decide(aligned: Aligned, verifier: Verifier, question: str = "") -> Aligned:
    """Return the memory or answer, with statements that have a passage marked by the verifier.

    A question is put before a short answer to it, which states nothing by itself.
    """
    asked = [note for note in aligned.notes if note.passage]
    if not asked:
        return aligned
    stated = [(note.passage, _statement_for(note.text, question)) for note in asked]
    likely = dict(zip(asked, await verifier.probabilities(stated), strict=True))
    judged = []
    for note in aligned.notes:
        if note not in likely:
            judged.append(note)
        elif likely[note] >= _SUPPORTED:
            judged.append(replace(note, state="supported", missing=()))
        elif note.is_new:  # else the older note stays as it was
            judged.append(replace(note, state="unsupported"))
    return replace(aligned, notes=tuple(judged))


_SHORT = 3
"""Most words of an answer that states nothing without its question."""


def _statement_for(text: str, question: str) -> str:
    return f"{question} {text}" if question and len(specific_terms(text)) <= _SHORT else text
