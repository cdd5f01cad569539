"""The floating-point operations of a model's calls, from the sizes that it publishes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_PAPER_WINDOW = 8_000
"""Window that is the unit of the paper's table of ratios, in tokens (arXiv 2507.02259)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a dense decoder that determine its floating-point operations.

    Attributes:
        name: the model that the sizes belong to.
        layers: number of blocks.
        width: width of the hidden states.
        heads: number of query heads.
        kv_heads: number of key and value heads.
        head_width: width of one head.
        intermediate: width of the feed-forward part that a token goes through.
        vocabulary: number of tokens in the vocabulary.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Parameters that each token is multiplied with; embedding and output head apart."""
        attention = 2 * self.width * self.head_width * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.intermediate)

    def operations(self, before: int, after: int) -> int:
        """Floating-point operations of the tokens from position `before` up to `after`.

        Two for each weight and token, and four for each pair of a query and a key that it sees,
        for each layer and unit of the heads' widths; a causal model sees what came before.
        """
        pairs = (after * (after + 1) - before * (before + 1)) // 2
        attention = 4 * self.layers * self.heads * self.head_width * pairs
        return 2 * self.weights * (after - before) + attention

    def call(self, prompt: int, reply: int) -> int:
        """Floating-point operations of one call, by its tokens."""
        head = 2 * self.width * self.vocabulary * reply  # only where a token is chosen
        return self.operations(0, prompt + reply) + head


QWEN_7B = ModelShape("Qwen2.5-7B, assumed", 28, 3584, 28, 4, 128, 18_944, 152_064)
"""The sizes that Qwen2.5-7B publishes in its config.json."""


def attention_ratios(tokens: int) -> tuple[float, float]:
    """Attention of one pass over `tokens`, and of a reading, in units of one window's.

    As the paper counts (arXiv 2507.02259): n tokens are n / 8,000 windows. One pass compares
    every token with every other, so it costs the square of that; a reading costs each window
    once. Both are 1 for a document that fits.
    """
    windows = max(1.0, tokens / _PAPER_WINDOW)
    return windows**2, windows


def model_shape(model: str | Path | None) -> ModelShape:
    """The sizes in a model's config.json, or else those of Qwen2.5-7B.

    Args:
        model: a model string ("hf:...", "vllm:..."), a folder, or a hub id that was downloaded.
    """
    provider, _, name = str(model or "").rpartition(":")
    if provider not in ("", "hf", "vllm") or not name:
        return QWEN_7B
    file = Path(name) / "config.json"
    if not file.is_file():
        with suppress(Exception):  # not installed, not downloaded, or no hub id: it is assumed
            from huggingface_hub import hf_hub_download

            file = Path(hf_hub_download(name, "config.json", local_files_only=True))
    try:
        return _shape(name, json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return QWEN_7B


def _shape(name: str, config: Mapping[str, Any]) -> ModelShape:
    config = config.get("text_config", config)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    intermediate = config["intermediate_size"]
    if experts := config.get("num_experts_per_tok"):  # a token goes through so many of them
        intermediate = experts * config.get("moe_intermediate_size", intermediate)
    return ModelShape(
        name=name,
        layers=config["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_width=config.get("head_dim") or width // heads,
        intermediate=intermediate,
        vocabulary=config["vocab_size"],
    )
