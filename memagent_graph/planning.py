"""Estimate the cost of a reading before any model is called."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from memagent_graph.config import LEXICAL, PART_TOKENS, ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.passages import Lexical, is_skimmed, room_for_passages, scope
from memagent_graph.graph.segments import (
    calls_each,
    merge_levels,
    most_merges,
    starts,
    updates_each,
)
from memagent_graph.readers.base import Reader
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.index import open_index
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from memagent_graph.text.files import DocumentLike
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike


@dataclass(frozen=True, slots=True)
class Plan:
    """The highest cost of a reading: no memory is reused, and every reply fills its budget.

    Calls repeated after an error, or because a memory was over its budget, are not included.

    Attributes:
        questions: number of questions about the document.
        document_tokens: length of the document, in tokens.
        chunks: chunks that are read for each question; `max_calls` limits them.
        calls: model calls for all questions, merges and answers included; with a skim, as if
            every skipped chunk were read after all.
        calls_if_found: with `skim="lexical"`, calls if each question is answered by the chunks
            that its own words lead to, and with `how="auto"` by what a search finds; None with
            other skims, or without one.
        prompt_tokens: tokens of all prompts.
        reply_tokens: tokens of all replies.
        window_tokens: tokens of the longest prompt and reply of one call.
        calls_at_once: segments of all questions, which are read at the same time.
        chain_calls: longest chain of calls that wait for one another: the updates
            of the segment with most chunks, a call for each level of merges, and the answer.
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


def plan(
    question: str,
    document: DocumentLike,
    config: ReadingConfig | None = None,
    *,
    questions: int = 1,
    tokenizer: TokenizerLike = None,
    concurrency: int = Reader.concurrency,
) -> Plan:
    """Cut the document and add up what reading it will cost, without calling a model.

    Args:
        question: the question to read for; the longest of several.
        document: anything that the graph reads.
        config: the budgets.
        questions: number of questions about the document in one pass.
        tokenizer: counts tokens; None estimates.
        concurrency: calls that the model answers at once, for `segments="auto"`.

    Raises:
        SourceError: The document cannot be read.
        ConfigurationError: `max_calls` is too few for questions and segments, or a number is out
            of range.

    Examples:
        >>> from memagent_graph import plan
        >>> cost = plan("Who pays?", "It rained. " * 90_000)
        >>> cost.chunks, cost.calls
        (49, 50)
    """
    if questions < 1:
        message = f"A plan is for 1 question or more, not {questions}."
        raise ConfigurationError(message)
    config, counter = ReadingConfig.model_validate(config or {}), load_tokenizer(tokenizer)
    if config.how == "auto" and config.skim is None:
        config = config.model_copy(update={"skim": LEXICAL})
    asked, memory = counter.count(question) + config.instruction_tokens, config.memory_tokens
    source, skims = open_source(document), is_skimmed(config, question)
    skim = Lexical(open_index(source)) if skims and config.skim == LEXICAL else None
    sizes, worth = [], 0
    size, exact = config.chunk_tokens, config.exact_cuts
    for chunk in chunks(source, tokenizer=counter, chunk_tokens=size, exact_cuts=exact):
        sizes.append(chunk.tokens)
        worth += skim is not None and skim.is_worth(question, "", chunk)
    everything = sum(sizes)
    places = starts(len(sizes), config, concurrency, questions)
    spans = [*pairwise([*places, len(sizes)])]
    left = calls_each(config, questions, len(spans))
    each = None if skims else updates_each(left, len(spans), config)  # what a skim saves is left
    levels = [*merge_levels(len(spans), config)]
    read = [sizes[start:end][:each] for start, end in spans]
    calls = [
        (asked + (memory if at else 0) + tokens, memory)
        for part in read
        for at, tokens in enumerate(part)
    ]
    calls += [(asked + size * (memory + PART_TOKENS), memory) for size in chain(*levels)]
    waiting, shown = max(map(len, read)) + len(levels), sum(map(len, read))
    finding = max(min(worth, len(spans)), 1)  # segments that have anything to merge
    if_found = min(worth, shown) + most_merges(finding, config) + 1
    first, last = _answers(config, question, counter, everything, again=skims)
    if not last:  # the window holds the text
        calls, waiting, shown = [], 0, 0
    calls, answers = [*first, *calls, *last], len(first) + len(last)
    if_found = 1 if first else if_found
    if config.max_calls is not None:
        del calls[max(config.max_calls // questions, 2) :]
    prompts = questions * sum(prompt for prompt, _ in calls)
    replies = questions * sum(reply for _, reply in calls)
    if len(last) > 1:  # what was skipped is read one chunk after the other, whatever the segments
        waiting += sum(map(len, read)) - max(map(len, read))
    if skims:
        waiting, shown = min(waiting, len(calls) - answers), min(shown, len(calls) - 1)
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
    )


def _answers(
    config: ReadingConfig, question: str, counter: Tokenizer, everything: int, *, again: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the calls that answer before anything is read, and after it: prompts and replies.

    The document has so many tokens as `everything`; what was skipped may be read `again` after all.
    """
    asked, memory = counter.count(question), config.memory_tokens

    def call(notes: int) -> tuple[int, int]:
        room = 0 if config.exact_cuts else room_for_passages(config, asked, notes)
        shown = max(0, min(everything, room))
        return asked + config.instruction_tokens + notes + shown, config.answer_tokens

    last = [call(memory)] * (1 + again)
    if config.how != "auto" or config.exact_cuts:
        return [], last
    if everything <= room_for_passages(config, asked, 0):
        return [call(0)], []
    return [call(0)] if scope(question) == "one" else [], last
