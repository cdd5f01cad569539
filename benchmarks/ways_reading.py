"""One document read one way, with calls that take a while: for `benchmarks/ways.py`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.evaluation.methods import make_method
from memagent_graph.readers.base import Update, Usage
from memagent_graph.readers.extractive import ExtractiveReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Answer, Merge, Step
    from memagent_graph.text.source import Source


class Slow(ExtractiveReader):
    """The built-in reader, each of whose calls takes a while and has a chat model's tokens.

    Args:
        seconds: that a call takes.
        config: the budgets.
    """

    concurrency = 16

    def __init__(self, seconds: float, config: ReadingConfig) -> None:
        super().__init__(config)
        self.seconds = seconds
        count, prompts = self._counter.count, Prompts()
        self._update_words = count(prompts.for_update("", "", "", self.memory_tokens))
        self._merge_words = count(prompts.for_merge("", [], self.memory_tokens))
        self._answer_words = count(prompts.for_answer("", ""))

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        await asyncio.sleep(self.seconds)
        update = await super().update(step, config=config)
        count, memory = self._counter.count, update.memory or step.memory
        asked = self._update_words + count(step.question) + count(step.memory.text)
        usage = Usage(1, asked + step.chunk.tokens, count(memory.text))
        return replace(update, usage=usage)

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        await asyncio.sleep(self.seconds)
        merge = await super().merge(question, memories, config=config)
        count = self._counter.count
        asked = self._merge_words + count(question) + sum(count(memory.text) for memory in memories)
        return replace(merge, usage=Usage(1, asked, count(merge.memory.text)))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        await asyncio.sleep(self.seconds)
        answer = await super().respond(question, memory, config=config)
        count = self._counter.count
        asked = self._answer_words + count(question) + count(memory.text)
        return replace(answer, usage=Usage(1, asked, count(answer.text)))


class Read(NamedTuple):
    answer: str
    final: str
    context: str
    calls: int
    input_tokens: int
    output_tokens: int


async def read(
    way: str, setting: dict[str, Any], question: str, source: Source, seconds: float = 1.0
) -> Read:
    """Read a document one way, with calls that take so many seconds."""
    config = ReadingConfig(reuse=False, **setting)
    reader = Slow(seconds, config)
    if way == "BM25":
        found = await make_method("bm25", reader, config)(question, source)
        used = found.usage.input_tokens, found.usage.output_tokens
        return Read(found.answer, found.final, found.context, found.usage.calls, *used)
    agent = create_memagent(reader, config=config)
    out = await agent.ainvoke({"question": question}, context={"document": source})
    usage = out["usage"]
    used = usage["calls"], usage["input_tokens"], usage["output_tokens"]
    return Read(out["response"], out["answer"] or "", out["memory"], *used)
