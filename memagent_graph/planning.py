"""What a reading will cost, before any of it is read by a model."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.config import PART_TOKENS, ReadingConfig
from memagent_graph.graph.merging import merges_of, updates_each
from memagent_graph.text.chunking import chunks, segments
from memagent_graph.text.opening import open_source
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.text.opening import DocumentLike
    from memagent_graph.text.tokens import TokenizerLike

_PAPER_WINDOW = 8_000
"""Tokens of the window that the paper's table of ratios is in units of (arXiv 2507.02259)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a dense decoder that its floating-point operations follow from.

    Attributes:
        name: where they come from.
        layers: number of blocks.
        width: of the hidden states.
        heads: of the queries.
        kv_heads: of keys and values.
        head_width: of one head.
        intermediate: width of the feed-forward part that a token goes through.
        vocabulary: entries.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reading will cost. Tokens of prompts and replies are upper bounds: the budgets.

    Attributes:
        document_tokens: of the document.
        chunks: of it that are read, all but for `max_calls`.
        calls: of the model, the answer included.
        prompt_tokens: of all calls, at most.
        reply_tokens: of all calls, at most.
        window_tokens: longest prompt and reply of one call, at most.
        attention_of_one_pass: of the whole document at once, in units of one window of 8,000
            tokens, as the paper counts: attention alone, which grows with the square.
        attention_of_reading: the same of the reading, which grows in proportion.
        operations_of_one_pass: all floating-point operations of reading the document at once
            and answering.
        operations_of_reading: all floating-point operations of the reading.
        model: whose sizes were used.
    """

    document_tokens: int
    chunks: int
    calls: int
    prompt_tokens: int
    reply_tokens: int
    window_tokens: int
    attention_of_one_pass: float
    attention_of_reading: float
    operations_of_one_pass: int
    operations_of_reading: int
    model: str

    def as_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


def plan(
    question: str,
    document: DocumentLike,
    config: ReadingConfig | None = None,
    model: str | ModelShape | None = None,
    *,
    tokenizer: TokenizerLike = None,
) -> Plan:
    """Cut the document and add up what reading it will cost; no model is called.

    Args:
        question: what the reading is for.
        document: as the graph takes it.
        config: the budgets.
        model: its sizes, or a model string or folder whose config.json has them. Where they
            cannot be found, Qwen2.5-7B's are assumed.
        tokenizer: what counts; None estimates.

    Raises:
        SourceError: The document cannot be read.
        ConfigurationError: `max_calls` is too few for its segments.
    """
    config = config or ReadingConfig()
    shape = model if isinstance(model, ModelShape) else model_shape(model)
    counter = load_tokenizer(tokenizer)
    asked = counter.count(question) + config.template_tokens
    source = open_source(document)
    spans = segments(source, config.segments, chunk_tokens=config.chunk_tokens)
    each = updates_each(config, 1, len(spans))
    everything, read, calls = 0, 0, []
    for start, end in spans:
        cut = chunks(
            source,
            start,
            end=end,
            tokenizer=counter,
            chunk_tokens=config.chunk_tokens,
            exact_cuts=config.exact_cuts,
        )
        sizes = [chunk.tokens for chunk in cut]
        everything += sum(sizes)
        read += len(sizes[:each])
        memories = [0] + [config.memory_tokens] * len(sizes)
        calls += [
            (asked + memory + tokens, config.memory_tokens)
            for memory, tokens in zip(memories, sizes[:each], strict=False)
        ]
    calls += [
        (asked + memories * (config.memory_tokens + PART_TOKENS), config.memory_tokens)
        for memories in merges_of(len(spans), config)
    ]
    calls.append((asked + config.memory_tokens, config.answer_tokens))
    one_pass, reading = attention_ratios(everything)
    return Plan(
        document_tokens=everything,
        chunks=read,
        calls=len(calls),
        prompt_tokens=sum(prompt for prompt, _ in calls),
        reply_tokens=sum(reply for _, reply in calls),
        window_tokens=max(prompt + reply for prompt, reply in calls),
        attention_of_one_pass=one_pass,
        attention_of_reading=reading,
        operations_of_one_pass=shape.call(asked + everything, config.answer_tokens),
        operations_of_reading=sum(shape.call(prompt, reply) for prompt, reply in calls),
        model=shape.name,
    )


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
