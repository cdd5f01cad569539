"""How likely a passage supports a statement: a sequence classifier of `transformers`."""

from __future__ import annotations

import asyncio
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import ConfigurationError, MissingDependencyError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BATCH = 32
"""Pairs that are judged at once."""
_ENTAILMENT = "entailment"


class _Loaded(NamedTuple):
    """A model that is ready.

    Attributes:
        tokenizer: of `transformers`.
        model: on its device.
        label: which output is the probability; None where there is only one.
        window: longest input, in tokens.
    """

    tokenizer: Any
    model: Any
    label: int | None
    window: int


class CrossEncoder:
    """Judges pairs in batches, in a thread. The weights are loaded when the first reading begins.

    A model with one output gives the sigmoid of it. Of several it is the share of the label
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
            ConfigurationError: There is no such model, or none of its labels means support.
            MissingDependencyError: torch or transformers are not installed.
        """
        await asyncio.to_thread(self._load)

    async def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """For each passage with its statement, how likely the one supports the other, 0 to 1.

        A pair over the model's context is cut, the longer of the two first.

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
            message = f"There is no cross-encoder {self.model!r}: {error}"
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
        except RuntimeError as error:  # torch's own, for memory that ran out too
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
