"""Estimate the cost of a reading before any model is called."""

from __future__ import annotations

from bisect import bisect
from contextvars import Context
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from langsmith import tracing_context

from memagent_graph.config import LEXICAL, PART_TOKENS, QUERY_TOKENS, ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.layers.skim import is_skimmed
from memagent_graph.readers.base import (
    Answer,
    Identity,
    Memory,
    Merge,
    Reader,
    Recall,
    Step,
    Update,
)
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.files import DocumentLike
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike


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
            the answer; with a skim, as if all were skipped at first, and then read in a row.
        chain_reply_tokens: tokens of these calls' replies.
        dollars: price of all calls; None if no price was given.
        minutes: time of the longest chain; None if no speed was given.
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

    def as_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


def plan(
    question: str,
    document: DocumentLike,
    config: ReadingConfig | None = None,
    *,
    questions: int = 1,
    price: tuple[float, float] | None = None,
    tokens_per_second: float | None = None,
    tokenizer: TokenizerLike = None,
    concurrency: int = Reader.concurrency,
) -> Plan:
    """Read the document with a reader that only counts, and add up what a model's calls will cost.

    Args:
        question: the question to read for; the longest of several.
        document: anything that the graph reads.
        config: the budgets.
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
    counter, source = load_tokenizer(tokenizer), open_source(document)

    def read(skim: Any, *, found: bool) -> _Counter:
        reader = _Counter(config, counter.count(question), counter, concurrency, found=found)
        settings = {"skim": skim, "recall_from": (), "deadline": None}
        planned = config.model_copy(update=settings)
        agent = create_memagent(reader, config=planned, tokenizer=counter)
        with tracing_context(enabled=False):
            out = agent.invoke({"questions": [question] * questions, "document": source})
        if error := out["answers"][0]["error"]:
            raise ConfigurationError(error)
        return reader

    def read_apart(skim: Any, *, found: bool) -> _Counter:  # no part of a graph that asks for it
        return Context().run(read, skim, found=found)

    sizes = [
        chunk.tokens
        for chunk in chunks(
            source,
            tokenizer=counter,
            chunk_tokens=config.chunk_tokens,
            exact_cuts=config.exact_cuts,
        )
    ]
    skims = is_skimmed(config, question)
    whole = read_apart(None, found=True)
    if_found = read_apart(LEXICAL, found=True) if skims and config.skim == LEXICAL else None
    calls, chain, answers = whole.calls, whole.chain, 1
    if skims and config.fallback:  # at worst all is skipped, and read after a first answer
        chain, answers = read_apart(lambda *_: 0.0, found=False).chain + 1, 2
        room = len(calls) if config.max_calls is None else config.max_calls - len(calls)
        calls = calls + [whole.answer] * min(questions, room)
    prompts, replies = (sum(tokens) for tokens in zip(*calls, strict=True))
    chained = (chain - answers) * config.memory_tokens + answers * config.answer_tokens
    return Plan(
        questions=questions,
        document_tokens=sum(sizes),
        chunks=whole.chunks // questions,
        calls=len(calls),
        calls_if_found=None if if_found is None else len(if_found.calls),
        prompt_tokens=prompts,
        reply_tokens=replies,
        window_tokens=max(map(sum, calls)),
        calls_at_once=whole.begun,
        chain_calls=chain,
        chain_reply_tokens=chained,
        dollars=(prompts * price[0] + replies * price[1]) / 1e6 if price else None,
        minutes=chained / tokens_per_second / 60 if tokens_per_second else None,
    )


class _Counter(Reader):
    """Takes as many tokens as the budgets allow, at once and without a model, and counts them.

    Its memory says how many calls it took, each of which waited for the one before.

    Attributes:
        calls: tokens of the prompt and of the reply of each call.
        answer: those of one that answers.
        chunks: chunks that were read.
        begun: folds that were begun without a memory.
        chain: the longest chain of calls that waited for one another, its answer included.
    """

    identity = Identity("plan", "plan")

    def __init__(
        self,
        config: ReadingConfig,
        asked: int,
        tokenizer: Tokenizer,
        concurrency: int,
        *,
        found: bool,
    ) -> None:
        self.concurrency = concurrency
        self.calls: list[tuple[int, int]] = []
        self.chunks = self.begun = self.chain = 0
        self._config, self._asked, self._found = config, asked + config.instruction_tokens, found
        self.answer = (self._asked + config.memory_tokens, config.answer_tokens)
        lengths = range(config.memory_tokens)
        most = bisect(lengths, config.memory_tokens, key=lambda n: tokenizer.count(_text(0, n)))
        self._padding = max(most - 1, 0)

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        return True

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        self.chunks += bool(step.chunk.text)
        self.begun += not step.memory.text
        prompt = step.chunk.tokens
        prompt += self._config.memory_tokens if step.memory.text else 0
        prompt += self._config.recall_tokens if step.recalled else 0
        memory = self._call(prompt, [step.memory], has_query=step.query != step.question)
        before = step.chunk.start  # never the same span twice, which would not be shown
        asked = Recall(span=(max(before - len(self.calls) % 64 - 1, 0), before))
        return Update(memory, recall=asked if step.look_back else None)

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        prompt = len(memories) * (self._config.memory_tokens + PART_TOKENS)
        memory = self._call(prompt, memories, has_query=query != question)
        return Merge(memory, done=False, query=f"{question} ?")

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        self.calls.append(self.answer)
        self.chain = max(self.chain, _depth([memory]) + 1)
        return Answer("-", "-", found=self._found)

    def _call(self, prompt: int, memories: Sequence[Memory], *, has_query: bool) -> Memory:
        prompt += self._asked + QUERY_TOKENS * has_query
        self.calls.append((prompt, self._config.memory_tokens))
        return Memory(_text(1 + _depth(memories), self._padding))


def _depth(memories: Sequence[Memory]) -> int:
    return max(int(memory.text[:9] or 0) for memory in memories)


def _text(depth: int, padding: int) -> str:
    return f"{depth:09}" + " a" * padding


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
