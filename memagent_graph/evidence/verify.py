"""Let a function, a cross-encoder or a decision model decide which statements are supported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable

from memagent_graph.config import is_decision_model
from memagent_graph.errors import ConfigurationError, MemAgentError, ModelError, install_hint
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.evidence.align import Aligned

Verify = str | Callable[[str, str], float | Awaitable[float]] | Runnable[Any, Any]
"""A function (passage, statement) that returns the probability, 0 to 1, that the passage supports
the statement; a decision model of LangChain; or `"cross-encoder/<hub id or folder>"`."""

CROSS_ENCODER = "cross-encoder/"
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

    async def prepare(self) -> None:
        """Load or check what is needed; awaited when a reading begins."""

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
    """Make a verifier from a function, a decision model or a string; None stays None."""
    if verify is None:
        return None
    if is_decision_model(verify):
        name = f"decision {type(verify)} {getattr(verify, 'model', '')}"
        return Verifier(partial(_choose_support, verify), name)
    if callable(verify):
        return Verifier(verify)
    if isinstance(verify, str) and verify.startswith(CROSS_ENCODER):
        rest = verify.removeprefix(CROSS_ENCODER)
        # Most cross-encoders on the hub belong to an organization of that name.
        return CrossEncoder(rest if "/" in rest else verify)
    kinds = f"a function, a decision model or {CROSS_ENCODER}<hub id or folder>"
    message = f"verify= takes {kinds}, not {verify!r}."
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


_BATCH = 32
"""Pairs per batch."""
_ENTAILMENT = "entailment"


class CrossEncoder(Verifier):
    """Scores pairs in batches, in a thread. Weights are loaded when the first reading begins.

    With one output, the probability is its sigmoid. With several, it is the softmax of the label
    "entailment", or of the second of two labels. The model is a hub id or a folder.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"cross-encoder {model}"
        self._lock = threading.Lock()

    async def prepare(self) -> None:
        """Load the model; a `ConfigurationError` if there is none, or no label means support."""
        await asyncio.to_thread(self._judge, ())

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return probabilities; a pair that exceeds the context is cut, the longer text first."""
        return await asyncio.to_thread(self._judge, pairs)

    @cached_property
    def _loaded(self) -> tuple[Any, str]:
        """The pipeline, and the label that means support."""
        with install_hint(f'{self.name} needs: pip install "memagent-graph[transformers]"'):
            from transformers import pipeline
        try:
            pipe = pipeline(
                "text-classification", self.model, dtype="float32", batch_size=_BATCH, top_k=None
            )
        except (OSError, ValueError) as error:
            hint = "Name a folder, or a hub id that this machine can reach."
            message = f"There is no cross-encoder {self.model!r}: {error} {hint}"
            raise ConfigurationError(message) from error
        labels = [*(pipe.model.config.id2label or {}).values()]
        meant = [label for label in labels if label.lower() == _ENTAILMENT]
        if not meant and len(labels) > 2:  # noqa: PLR2004 - no and yes
            message = (
                f"{self.model!r} has the labels {', '.join(labels)}, and none is {_ENTAILMENT!r}: "
                "name a model for natural language inference, or one with a single output."
            )
            raise ConfigurationError(message)
        return pipe, (meant or labels)[-1]

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        with self._lock:
            pipe, meant = self._loaded
            longest = getattr(pipe.model.config, "max_position_embeddings", None)
            window = min(filter(None, (pipe.tokenizer.model_max_length, longest)))
            inputs = [{"text": passage, "text_pair": said} for passage, said in pairs]
            scale = "softmax" if pipe.model.config.num_labels > 1 else "sigmoid"
            cut = {"truncation": True, "max_length": window}
            try:
                found = pipe(inputs, function_to_apply=scale, **cut) if inputs else []
            except RuntimeError as error:  # torch's, also if memory ran out
                message = f"{self.name} failed: {error}"
                raise ModelError(message) from error
        return [next(one["score"] for one in scores if one["label"] == meant) for scores in found]
