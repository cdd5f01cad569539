"""Estimate the cost of a reading before any model is called."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.config import LEXICAL, PART_TOKENS, QUERY_TOKENS, ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.merging import calls_each, merge_levels, most_merges, updates_each
from memagent_graph.graph.segments import room_of, starts
from memagent_graph.graph.skimming import Lexical, is_skimmed
from memagent_graph.readers.base import Reader
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.index import open_index
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.text.files import DocumentLike
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import TokenizerLike

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


@dataclass(frozen=True, slots=True)
class Plan:
    """The highest cost of a reading: no memory is reused, and every reply fills its budget.

    Calls repeated after an error, or because a memory was over its budget, are not included.

    Attributes:
        questions: number of questions about the document.
        document_tokens: length of the document, in tokens.
        chunks: chunks that are read for each question, in all rounds; `max_calls` limits them.
        calls: model calls for all questions, merges and answers included; with a skim, as if
            every skipped chunk were read after all, and with look-back as if each step asked
            for something.
        calls_if_found: with `skim="lexical"`, calls if each question is answered by the chunks
            that its own words lead to; None with other skims, or without one.
        prompt_tokens: tokens of all prompts.
        reply_tokens: tokens of all replies.
        window_tokens: tokens of the longest prompt and reply of one call.
        calls_at_once: segments of all questions, which are read at the same time.
        chain_calls: longest chain of calls that wait for one another: the updates
            of the segment with most chunks and a call for each level of merges, in each round, and
            the answer.
        chain_reply_tokens: tokens of these calls' replies.
        dollars: price of all calls; None if no price was given.
        minutes: time of the longest chain; None if no speed was given.
        attention_of_one_pass: attention of reading the whole document at once, which grows with
            the square of its length, in units of one window of 8,000 tokens, as the paper counts.
        attention_of_reading: attention of the reading in the same units, which grows linearly.
        operations_of_one_pass: all floating-point operations of reading the document at once
            and answering, for each question.
        operations_of_reading: all floating-point operations of the reading.
        model: the model whose sizes were used.
    """

    questions: int
    document_tokens: int
    chunks: int
    calls: int
    calls_if_found: int | None
    prompt_tokens: int
    reply_tokens: int
    window_tokens: int
    calls_at_once: int
    chain_calls: int
    chain_reply_tokens: int
    dollars: float | None
    minutes: float | None
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
    questions: int = 1,
    price: tuple[float, float] | None = None,
    tokens_per_second: float | None = None,
    tokenizer: TokenizerLike = None,
    concurrency: int = Reader.concurrency,
) -> Plan:
    """Cut the document and add up what reading it will cost, without calling a model.

    Args:
        question: the question to read for; the longest of several.
        document: anything that the graph reads.
        config: the budgets.
        model: sizes of the model, or a model string or folder whose config.json has them. If they
            cannot be found, those of Qwen2.5-7B are assumed.
        questions: number of questions about the document in one pass.
        price: dollars for a million tokens of prompts, and for a million of replies.
        tokens_per_second: tokens of a reply divided by the seconds of its call, reading the prompt
            included, while `calls_at_once` calls run: `usage["output_tokens"] / usage["seconds"]`
            of a reading.
        tokenizer: counts tokens; None estimates.
        concurrency: calls that the model answers at once, for `segments="auto"`.

    Raises:
        SourceError: The document cannot be read.
        ConfigurationError: `max_calls` is too few for questions and segments, or a number is out
            of range.

    Examples:
        >>> from memagent_graph import plan
        >>> cost = plan("Who pays?", "It rained. " * 90_000, price=(2.5, 10))
        >>> cost.chunks, cost.calls, round(cost.dollars, 2)
        (49, 50, 1.28)
    """
    _check(questions, price, tokens_per_second)
    config = config or ReadingConfig()
    shape = model if isinstance(model, ModelShape) else model_shape(model)
    counter = load_tokenizer(tokenizer)
    asked, memory = counter.count(question) + config.instruction_tokens, config.memory_tokens
    source = open_source(document)
    skim = _skim(source, question, config)
    sizes, worth = [], 0
    for chunk in chunks(
        source,
        tokenizer=counter,
        chunk_tokens=config.chunk_tokens,
        exact_cuts=config.exact_cuts,
    ):
        sizes.append(chunk.tokens)
        worth += skim is not None and skim.decide(question, "", chunk)
    everything = sum(sizes)
    places = starts(len(sizes), room_of(config, len(sizes), concurrency, questions))
    spans = [*pairwise([*places, len(sizes)])]
    left = calls_each(config, questions, len(spans))
    skims = is_skimmed(config, question)
    saves = skims or config.recalls or config.exit != "never"
    if saves:  # in one round for the next, or for what is read after all
        left = None
    levels = [*merge_levels(len(spans), config)]
    calls, waiting, shown, merges = list[tuple[int, int]](), 0, 0, 0
    looks = [0] * config.recalls  # steps after the last chunk of each segment
    for number in range(config.rounds):
        each = updates_each(left, len(spans), config)
        if number and each is not None and each < 1:
            break
        read = [[*sizes[start:end], *looks][:each] for start, end in spans]
        asked += QUERY_TOKENS if number == 1 else 0
        calls += [
            (
                asked
                + (memory if at or number else 0)
                + (config.recall_tokens if at else 0)
                + tokens,
                memory,
            )
            for part in read
            for at, tokens in enumerate(part)
        ]
        calls += [(asked + size * (memory + PART_TOKENS), memory) for size in chain(*levels)]
        waiting += max(map(len, read)) + len(levels)
        shown += sum(
            min(len(part), end - start) for part, (start, end) in zip(read, spans, strict=True)
        )
        merges += sum(map(len, levels))
        left = None if left is None else left - sum(map(len, read))
    updates = len(calls) - merges
    finding = max(min(worth, len(spans)), 1)  # segments that have anything to merge
    updates_if_found = min(config.rounds * (worth + len(looks) * finding), updates)
    if_found = updates_if_found + config.rounds * most_merges(finding, config) + 1
    answers = 2 if skims and config.fallback else 1
    calls += [(asked + memory, config.answer_tokens)] * answers
    if config.max_calls is not None:
        del calls[max(config.max_calls // questions, 2) :]
    prompts = questions * sum(prompt for prompt, _ in calls)
    replies = questions * sum(reply for _, reply in calls)
    if answers > 1:  # what was skipped is read one chunk after the other, whatever the segments
        waiting += sum(map(len, read)) - max(map(len, read))
    if saves:
        waiting, shown = min(waiting, len(calls) - answers), min(shown, len(calls) - 1)
    chained = waiting * memory + answers * config.answer_tokens
    one_pass, reading = attention_ratios(everything)
    return Plan(
        questions=questions,
        document_tokens=everything,
        chunks=shown,
        calls=questions * len(calls),
        calls_if_found=None if skim is None else questions * min(if_found, len(calls)),
        prompt_tokens=prompts,
        reply_tokens=replies,
        window_tokens=max(prompt + reply for prompt, reply in calls),
        calls_at_once=questions * len(spans),
        chain_calls=waiting + answers,
        chain_reply_tokens=chained,
        dollars=(prompts * price[0] + replies * price[1]) / 1e6 if price else None,
        minutes=chained / tokens_per_second / 60 if tokens_per_second else None,
        attention_of_one_pass=one_pass,
        attention_of_reading=reading,
        operations_of_one_pass=questions * shape.call(asked + everything, config.answer_tokens),
        operations_of_reading=questions * sum(shape.call(*call) for call in calls),
        model=shape.name,
    )


def _skim(source: Source, question: str, config: ReadingConfig) -> Lexical | None:
    """Return the skim that finds the chunks for a question's words, if the reading uses it."""
    if config.skim != LEXICAL or not is_skimmed(config, question):
        return None
    return Lexical(open_index(source))


def _check(questions: int, price: tuple[float, float] | None, speed: float | None) -> None:
    if questions < 1:
        message = f"A plan is for 1 question or more, not {questions}."
        raise ConfigurationError(message)
    if price is not None and not all(isfinite(dollars) and dollars >= 0 for dollars in price):
        message = f"A price is two numbers of dollars for a million tokens, not {price}."
        raise ConfigurationError(message)
    if speed is not None and not (isfinite(speed) and speed > 0):
        message = f"tokens_per_second must be a number above 0, not {speed}."
        raise ConfigurationError(message)
