"""Let a function, a cross-encoder or a decision model decide which statements are supported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from langchain_core.runnables import Runnable

from memagent_graph.config import is_decision_model
from memagent_graph.errors import (
    ConfigurationError,
    MemAgentError,
    ModelError,
    install_hint,
)
from memagent_graph.evidence.align import remember
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
        name: its name in fingerprints; None for the function's own.
    """

    def __init__(
        self, function: Callable[[str, str], float | Awaitable[float]], name: str | None = None
    ) -> None:
        own = f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"
        self.name = name or own
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
    """Make a verifier from a function, a decision model or a string; None stays None.

    Raises:
        ConfigurationError: It is something else, or a string that names no cross-encoder.
    """
    if verify is None:
        return None
    if is_decision_model(verify):
        name = f"decision {type(verify)} {getattr(verify, 'model', '')}"
        return Called(partial(_choose_support, verify), name)
    if callable(verify):
        return Called(verify)
    if not isinstance(verify, str) or not verify.startswith(CROSS_ENCODER):
        message = (
            f"verify= takes a function, a decision model or {CROSS_ENCODER}<hub id or folder>, "
            f"not {verify!r}."
        )
        raise ConfigurationError(message)

    rest = verify.removeprefix(CROSS_ENCODER)
    # Most cross-encoders on the hub belong to an organization of that name.
    return CrossEncoder(rest if "/" in rest else verify)


async def choose(model: Any, state: Mapping[str, str], chosen: str, other: str) -> float:
    """Return the probability, 0 to 1, that a decision model gives the first of two statements.

    Asked for a yes or no, many a model says yes to a statement and to its negation.

    Args:
        model: a `langchain_core.decisions.BaseDecisionModel`.
        state: the texts that the statements are about, by their names.
        chosen: the statement.
        other: what holds if it does not.

    Raises:
        ModelError: The model failed.
    """
    from langchain_core.decisions import Choice

    asked = Choice(instructions=_WHICH, criteria={"first": chosen, "second": other})
    try:
        response = await model.ainvoke({"state": {**state}, "questions": {"which": asked}})
        return float(response.choices["which"].probabilities["first"])
    except Exception as error:
        message = f"The decision model failed: {error}"
        raise ModelError(message) from error


_WHICH = "Which of the two statements is true?"


async def _choose_support(model: Any, passage: str, statement: str) -> float:
    chosen, other = (f"The passage {says}: {statement}" for says in ("says", "does not say"))
    return await choose(model, {"passage": passage}, chosen, other)


async def decide(aligned: Aligned, verifier: Verifier, question: str = "") -> Aligned:
    """Return the memory or answer, with statements marked as the verifier decides.

    Args:
        aligned: the memory or answer, aligned by words. Statements without a passage keep their
            marks.
        verifier: judges all other statements in one call.
        question: the question that an answer is for. It is put before a short answer, which states
            nothing by itself.

    Raises:
        ModelError: The verifier failed.
    """
    asked = [note for note in aligned.notes if note.passage]
    if not asked:
        return aligned
    stated = [(note.passage, _statement_for(note.text, question)) for note in asked]
    found = await verifier.probabilities(stated)
    likely = dict(zip((note.start for note in asked), found, strict=True))
    judged = []
    for note in aligned.notes:
        if note.start not in likely:
            judged.append(note)
        elif likely[note.start] >= _SUPPORTED:
            judged.append(replace(note, state="supported", missing=()))
        elif note.is_new:  # else the older note stays as it was
            judged.append(replace(note, state="unsupported"))
    memory = remember(aligned.memory.text, aligned.before, judged)
    return replace(aligned, memory=memory, notes=tuple(judged))


_SHORT = 3
"""Most words of an answer that states nothing without its question."""


def _statement_for(text: str, question: str) -> str:
    return f"{question} {text}" if question and len(specific_terms(text)) <= _SHORT else text


_BATCH = 32
"""Pairs per batch."""
_ENTAILMENT = "entailment"


class _EntailmentModel(NamedTuple):
    """A loaded model.

    Attributes:
        tokenizer: the tokenizer.
        model: the model, on its device.
        label: index of the output that is the probability; None if there is only one output.
        window: longest input, in tokens.
    """

    tokenizer: Any
    model: Any
    label: int | None
    window: int


class CrossEncoder:
    """Scores pairs in batches, in a thread. Weights are loaded when the first reading begins.

    With one output, the probability is its sigmoid. With several, it is the softmax of the label
    "entailment", or of the second of two labels.

    Args:
        model: a hub id or a folder.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"cross-encoder {model}"
        self._lock = threading.Lock()

    async def prepare(self) -> None:
        """Load the model.

        Raises:
            ConfigurationError: There is no such model, or no label of it means support.
            MissingDependencyError: torch or transformers are not installed.
        """
        await asyncio.to_thread(self._load)

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return, for each (passage, statement), the probability of support, 0 to 1.

        A pair that exceeds the model's context is truncated, the longer text first.

        Raises:
            ModelError: The model failed.
        """
        return await asyncio.to_thread(self._judge, pairs)

    def _load(self) -> _EntailmentModel:
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> _EntailmentModel:
        with install_hint(f'{self.name} needs: pip install "memagent-graph[transformers]"'):
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model)
            model = AutoModelForSequenceClassification.from_pretrained(self.model, dtype="float32")
        except (OSError, ValueError) as error:
            message = (
                f"There is no cross-encoder {self.model!r}: {error} Name a folder, or a hub id "
                "that this machine can reach."
            )
            raise ConfigurationError(message) from error
        label = self._label(model.config.label2id, model.config.num_labels)
        longest = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
        window = min(tokenizer.model_max_length, longest)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return _EntailmentModel(tokenizer, model.to(device).eval(), label, window)

    def _label(self, labels: Mapping[str, int], count: int) -> int | None:
        named = {name.lower(): number for name, number in labels.items()}
        if count == 1:
            return None
        if _ENTAILMENT in named:
            return named[_ENTAILMENT]
        if count == 2:  # noqa: PLR2004 - no and yes
            return 1
        known = ", ".join(sorted(labels, key=labels.__getitem__))
        message = (
            f"{self.model!r} has the labels {known}, and none is {_ENTAILMENT!r}: "
            "name a model for natural language inference, or one with a single output."
        )
        raise ConfigurationError(message)

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        loaded = self._load()
        found: list[float] = []
        try:
            with self._lock:
                for start in range(0, len(pairs), _BATCH):
                    found += _probabilities(loaded, pairs[start : start + _BATCH])
        except RuntimeError as error:  # torch's, also if memory ran out
            message = f"{self.name} failed: {error}"
            raise ModelError(message) from error
        return found


def _probabilities(loaded: _EntailmentModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    import torch

    passages, statements = zip(*pairs, strict=True)
    inputs = loaded.tokenizer(
        [*passages],
        [*statements],
        truncation=True,
        max_length=loaded.window,
        padding=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        logits = loaded.model(**inputs.to(loaded.model.device)).logits.float()
    if loaded.label is None:
        chosen = logits[:, 0].sigmoid()
    else:
        chosen = logits.softmax(dim=-1)[:, loaded.label]
    found: list[float] = chosen.tolist()
    return found
