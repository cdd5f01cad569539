"""A cross-encoder of `transformers` that scores how likely a passage supports a statement."""

from __future__ import annotations

import asyncio
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import ConfigurationError, MissingDependencyError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BATCH = 32
"""Pairs per batch."""
_ENTAILMENT = "entailment"


class _Loaded(NamedTuple):
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

    def _load(self) -> _Loaded:
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> _Loaded:
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError as error:
            message = f'{self.name} needs: pip install "memagent-graph[transformers]" ({error})'
            raise MissingDependencyError(message) from error
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
        return _Loaded(tokenizer, model.to(device).eval(), label, window)

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


def _probabilities(loaded: _Loaded, pairs: Sequence[tuple[str, str]]) -> list[float]:
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
