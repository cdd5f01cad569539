"""One step of the fold, with the rules that keep a memory safe whatever the reader does."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import ContextLengthError, EmptyReplyError
from memagent_graph.readers.base import Update, Usage
from memagent_graph.text.chunking import Chunk, next_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.readers.base import Evidence, Reader
    from memagent_graph.text.tokens import Tokenizer


async def overwrite(
    reader: Reader,
    question: str,
    memory: str,
    chunk: Chunk,
    *,
    tokenizer: Tokenizer,
    evidence: Sequence[Evidence] = (),
    config: RunnableConfig | None = None,
) -> Update:
    """Compute the memory after `chunk`, in as many calls as the model's window asks for.

    A chunk that the model's context cannot hold is halved until it fits. White space is not
    worth a call. The update returned holds the new memory even when it did not change.

    Raises:
        EmptyReplyError: The reader returned nothing, which must not replace a memory.
        ContextLengthError: Not even a single code point of the chunk fits.
        ModelError: As the reader raised it.
    """
    if not chunk.text.strip():
        return Update(memory, changed=False, evidence=evidence)
    started = perf_counter()
    try:
        update = await reader.update(question, memory, chunk, evidence=evidence, config=config)
    except ContextLengthError:
        if len(chunk.text) == 1:
            raise
        seconds = perf_counter() - started
        failed = Update(memory, changed=False, evidence=evidence, usage=Usage(1, seconds=seconds))
        return await _overwrite_halves(
            reader, question, failed, chunk, tokenizer=tokenizer, config=config
        )
    usage = replace(update.usage, calls=1, seconds=perf_counter() - started)
    if not update.changed:
        return replace(update, memory=memory, evidence=evidence, usage=usage)
    if not update.memory.strip():
        raise EmptyReplyError("The reader returned an empty memory; the last one was kept.")
    return replace(update, usage=usage)


async def _overwrite_halves(
    reader: Reader,
    question: str,
    before: Update,
    chunk: Chunk,
    *,
    tokenizer: Tokenizer,
    config: RunnableConfig | None,
) -> Update:
    total = before
    for half in _halves(chunk, tokenizer):
        update = await overwrite(
            reader,
            question,
            total.memory,
            half,
            tokenizer=tokenizer,
            evidence=total.evidence,
            config=config,
        )
        changed = total.changed or update.changed
        total = replace(update, changed=changed, usage=total.usage + update.usage)
        if total.done:
            break
    return total


def _halves(chunk: Chunk, tokenizer: Tokenizer) -> Iterator[Chunk]:
    budget = max(1, chunk.tokens // 2)
    start = chunk.start
    while start < chunk.end:
        part = next_chunk(chunk.source, start, tokenizer=tokenizer, chunk_tokens=budget)
        if part is None:  # pragma: no cover - the source ended before its own chunk
            return
        if part.end > chunk.end:
            text = part.text[: chunk.end - start]
            part = replace(part, text=text, end=chunk.end, tokens=tokenizer.count(text))
        if len(part.text) == len(chunk.text):  # a single token of several code points
            middle = len(part.text) // 2
            part = replace(part, text=part.text[:middle], end=part.start + middle)
        yield part
        start = part.end
