"""Parts of the benchmarks on vLLM: texts, a reader with a full memory, a record of calls."""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph import create_memagent
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.chat import ChatReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph import Prompts, ReadingConfig
    from memagent_graph.models.vllm import ChatVLLM
    from memagent_graph.readers.base import Reader, Step, Update

WORDS = sorted({word for word in topics["class"].split() if word.isalpha() and len(word) < 5})
"""Short words, of about a token each."""


class Call(NamedTuple):
    """One call of the engine.

    Attributes:
        prompt: token ids.
        reply: its length in tokens.
        cached: tokens of the prompt that the prefix cache had.
        started: when the engine took it, in seconds.
        ended: when it was done.
    """

    prompt: list[int]
    reply: int
    cached: int
    started: float
    ended: float


class FullMemory(ChatReader):
    """Asks as `ChatReader` does; its memory is always full: the reply, and the end of the last."""

    shortens = False

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        old = step.memory.text or words(step.question, self._memory_tokens)
        full = replace(step, memory=Memory(old))
        update = await super().update(full, config=config)
        new = update.memory.text if update.memory else ""
        counter, text = self.identity.tokenizer, f"{old} {new}"
        left_out = counter.prefix(text, max(0, counter.count(text) - self._memory_tokens))
        return replace(update, memory=Memory(text[left_out:]))


@contextmanager
def recording() -> Iterator[list[Call]]:
    """Record all calls to engines in this process, until the block ends."""
    from memagent_graph.models.vllm import VLLMEngine

    calls: list[Call] = []
    generate = VLLMEngine.generate

    async def recorded(self: VLLMEngine, prompt: list[int], *rest: Any) -> Any:
        started = time.perf_counter()
        async for output in generate(self, prompt, *rest):
            yield output
        reply, cached = len(output.outputs[0].token_ids), output.num_cached_tokens or 0
        calls.append(Call(prompt, reply, cached, started, time.perf_counter()))

    VLLMEngine.generate = recorded  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        VLLMEngine.generate = generate  # type: ignore[method-assign]


def words(seed: str, count: int) -> str:
    """So many words, the same for the same seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def document(tokenizer: Any, tokens: int, seed: str) -> str:
    """A text of exactly so many tokens, another one for another seed."""
    text = words(seed, 2 * tokens)
    return text[: tokenizer.prefix(text, tokens)]


async def ask(
    model: ChatVLLM,
    text: str,
    questions: int,
    config: ReadingConfig,
    prompts: Prompts | None = None,
) -> None:
    """Ask so many questions about one text, at once.

    Raises:
        SystemExit: One of them failed.
    """
    agent = create_memagent(FullMemory(model, prompts=prompts, config=config), config=config)
    asked = [
        words(f"question {number}", config.question_tokens // 2) for number in range(questions)
    ]
    out = await agent.ainvoke({"questions": asked, "document": text})
    if errors := [answer["error"] for answer in out["answers"] if answer["error"]]:
        raise SystemExit(errors[0])


def between_calls(model: ChatVLLM | Reader, text: str, config: ReadingConfig) -> list[float]:
    """Milliseconds from the end of each call of one reading to the start of the next.

    The reading has a store and a checkpointer, both SQLite files.
    """
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.store.sqlite import SqliteStore

    with (
        tempfile.TemporaryDirectory() as place,
        SqliteSaver.from_conn_string(f"{place}/run.sqlite") as checkpointer,
        SqliteStore.from_conn_string(f"{place}/store.sqlite") as store,
        recording() as calls,
    ):
        store.setup()
        agent = create_memagent(model, config=config, checkpointer=checkpointer, store=store)
        asked = {"question": "Which words are reserved?", "document": text}
        agent.invoke(asked, {"configurable": {"thread_id": "1"}})
    return [1000 * (after.started - before.ended) for before, after in pairwise(calls)]
