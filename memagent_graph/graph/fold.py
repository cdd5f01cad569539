"""One step of the fold, with rules that protect the memory from faults of the reader."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import ContextLengthError, EmptyReplyError, RefusalError
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.recalling import is_last_look, look_on, may_look_back, recall
from memagent_graph.graph.records import Progress, looks_of, memory_of, noted, query_of, span_of
from memagent_graph.graph.skimming import is_skipped, move, skip
from memagent_graph.readers.base import Step, Update, Usage
from memagent_graph.text.chunks import Chunk, next_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory, Recalled
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold, Looks
    from memagent_graph.graph.skimming import Skim
    from memagent_graph.graph.versions import Chain
    from memagent_graph.text.tokens import Tokenizer


async def advance(
    reading: Reading,
    fold: Fold,
    chunk: Chunk,
    *,
    chain: Chain | None = None,
    seconds: float | None = None,
    tell: Callable[[Fold, int, tuple[Recalled, ...]], None] | None = None,
    skim: Skim | None = None,
    config: RunnableConfig | None = None,
) -> Fold:
    """Read or skip one chunk, and return the fold after it. Nothing else overwrites a memory.

    Args:
        reading: the reader and its budgets.
        fold: the fold before the chunk.
        chunk: the chunk at the fold's position; after the last one, an empty chunk to show what
            was recalled.
        chain: the fold's versions in the store; None without a store.
        seconds: time limit of the reader in seconds; None for no limit.
        tell: called with the fold after the chunk, its memory's tokens and what was recalled,
            before the version is stored; not called for a skipped chunk.
        skim: decides whether the chunk is worth a call; None reads it.
        config: the run's config, for the reader.

    Raises:
        TimeoutError: The reader, or another reading that is followed, took longer.
        LateError: A look-up in the document took longer.
        ModelError: The reader failed; the memory is unchanged.
        MemoryConflictError: A named memory was changed by others too many times.
    """
    if skim is not None and chunk.text and await is_skipped(skim, fold, chunk):
        passed = skip(fold["progress"], chunk, span_of(fold["source"]).end)
        if looks_of(passed)["wanted"] is not None:
            passed["stopped"] = None  # what was asked for must still be shown
        return await _ended({**fold, "progress": passed}, chain)
    memory = memory_of(fold) if chain is None else await chain.before(fold)
    recalled = await recall(reading, fold, chunk, chain, seconds)
    if not (chunk.text or recalled):  # nothing that the last update asked for was found
        looks: Looks = {**looks_of(fold["progress"]), "wanted": None}
        ended: Progress = {**fold["progress"], "looks": looks, "stopped": "end"}
        return await _ended({**fold, "progress": ended}, chain)

    most = reading.most_updates(fold)
    again = most is None or fold["progress"]["calls"] + 2 <= most

    async def read(memory: Memory) -> Update:
        step = Step(
            fold["question"],
            query_of(fold),
            memory,
            chunk,
            number=fold["progress"]["step"] + 1,
            recalled=recalled,
            look_back=may_look_back(reading, fold, chunk),
            recall_from=reading.config.recall_from,
            update_gate=reading.config.update_gate,
            exit_gate=reading.may_exit(fold["question"]) and fold["progress"]["enough"] is None,
        )
        asked = overwrite(reading, step, again=again, config=config)
        async with nullcontext() if chain is None else chain.beating():
            return await (asked if seconds is None else asyncio.wait_for(asked, seconds))

    if chain is None:
        update = await read(memory)
    elif theirs := await chain.followed(fold, chunk, recalled):
        update = theirs
    else:
        update = await read(memory)
        if other := await chain.overtaken():  # another reading had stored the last chunk first
            memory, update = other, await read(other)
    after, tokens = overwritten(reading, fold, chunk, memory, update, recalled)
    if tell is not None:
        tell(after, tokens, recalled)
    if chain is None:
        return after
    gated = after["progress"]["gated"] > fold["progress"]["gated"]
    return await chain.keep(after, chunk, tokens, gated=gated, recalled=recalled)


async def _ended(after: Fold, chain: Chain | None) -> Fold:
    """The fold after a step without an update; if it ends there, its chain is ended."""
    if chain is None or not after["progress"]["stopped"]:
        return after
    return await chain.end(after)


def overwritten(
    reading: Reading,
    fold: Fold,
    chunk: Chunk,
    memory: Memory,
    update: Update,
    recalled: tuple[Recalled, ...] = (),
) -> tuple[Fold, int]:
    """Return the fold after a chunk, and the tokens of its memory.

    Args:
        reading: gives the budgets.
        fold: the fold before the chunk.
        chunk: the chunk that was read.
        memory: the memory before it.
        update: the reader's update.
        recalled: passages and memories that the reader was shown again.
    """
    before, usage = fold["progress"], update.usage
    if update.memory is not None:
        memory, tokens, cut = reading.within_budget(update.memory)
    else:
        tokens, cut = reading.tokenizer.count(memory.text), False
    end = span_of(fold["source"]).end
    position, skipped = before["position"], before["skipped"]
    if chunk.text:
        position, skipped = move(before, chunk, end)
    progress = Progress(
        position=position,
        step=before["step"] + 1,
        tokens=before["tokens"] + chunk.tokens,
        calls=before["calls"] + usage.calls,
        gated=before["gated"] + (reading.config.update_gate and update.memory is None),
        input_tokens=before["input_tokens"] + usage.input_tokens,
        output_tokens=before["output_tokens"] + usage.output_tokens,
        seconds=before["seconds"] + usage.seconds,
        skipped=skipped,
        unreached=before["unreached"],
        again=before["again"],
        cut=before["cut"] or cut or update.unfinished,
        enough=update.answer if update.done else before["enough"],
        stopped=None,
        version=before["version"],
    )
    most = reading.most_updates(fold)
    spent = most is not None and progress["calls"] >= most
    if reading.config.recalls:
        ends = update.done or (position >= end and spent)
        wanted = None if ends else update.recall
        progress["looks"] = look_on(reading, fold, chunk, wanted, recalled)
    if is_last_look(progress, end):
        return {**fold, **noted(memory), "progress": progress}, tokens
    if position >= end:
        progress["stopped"] = "end"
    elif update.done:
        progress["stopped"] = "done"
    elif spent:
        progress["stopped"] = "max_calls"
    return {**fold, **noted(memory), "progress": progress}, tokens


async def overwrite(
    reading: Reading, step: Step, *, again: bool, config: RunnableConfig | None = None
) -> Update:
    """Ask the reader for the new memory, in as many calls as the model's window requires.

    A chunk that does not fit the model's context is halved until it does. White space costs no
    call. A memory over its budget is asked for once more.

    Args:
        reading: the reader and its budgets.
        step: the step.
        again: whether there are calls left for asking once more.
        config: the run's config.

    Raises:
        EmptyReplyError: The reader returned an empty memory, which must not replace one.
        ContextLengthError: Not even one code point of the chunk fits the context.
        ModelError: The reader failed.
    """
    if not (step.recalled or step.chunk.text.strip()):
        return Update(None)
    started = perf_counter()
    try:
        update = await _within_budget(reading, step, again=again, config=config)
    except ContextLengthError:
        failed = Update(None, usage=Usage(1, seconds=perf_counter() - started))
        if step.recalled and len(step.chunk.text) <= 1:
            less = replace(step, recalled=())
            update = await overwrite(reading, less, again=again, config=config)
            return replace(update, usage=failed.usage + update.usage)
        if len(step.chunk.text) == 1:
            raise
        return await _overwrite_halves(reading, step, failed, again=again, config=config)
    return replace(update, usage=replace(update.usage, seconds=perf_counter() - started))


async def _within_budget(
    reading: Reading, step: Step, *, again: bool, config: RunnableConfig | None
) -> Update:
    """Ask the reader, and once more if its memory is over the budget and it can be shorter."""
    update = await _ask(reading, step, config)
    over = update.memory is not None and (update.unfinished or reading.is_over(update.memory))
    if not (over and again and reading.reader.shortens):
        return update
    kept, refused = update, -1
    try:
        kept = await _ask(reading, replace(step, shorter=True), config)
        refused = -2
    except (EmptyReplyError, RefusalError):
        pass  # the first memory is cut
    if config is not None:
        for observer in observers(config):
            observer.refused(step_of(config), refused)
    usage = update.usage + (Usage(1) if kept is update else kept.usage)
    return replace(kept, usage=usage, recall=kept.recall or update.recall)


async def _ask(reading: Reading, step: Step, config: RunnableConfig | None) -> Update:
    """Make one call, and return its update with the memory to keep.

    Raises:
        EmptyReplyError: The reader returned an empty memory.
        ModelError: The reader failed.
    """
    update = await reading.reader.update(step, config=config)
    update = replace(
        update, done=update.done and step.exit_gate, usage=replace(update.usage, calls=1)
    )
    if update.memory is None:
        return update
    if not update.memory.text.strip():
        raise EmptyReplyError("The reader returned an empty memory; the previous one is kept.")
    memory = reading.supported(replace(update.memory, dropped=step.memory.dropped))
    if not memory.text.strip():
        memory = replace(step.memory, dropped=memory.dropped)
    return replace(update, memory=memory)


async def _overwrite_halves(
    reading: Reading, step: Step, before: Update, *, again: bool, config: RunnableConfig | None
) -> Update:
    total = before
    for half in _halves(step.chunk, reading.tokenizer):
        part = replace(step, memory=total.memory or step.memory, chunk=half)
        update = await overwrite(reading, part, again=again, config=config)
        usage = total.usage + update.usage
        unfinished = total.unfinished or update.unfinished
        memory = update.memory or total.memory
        # The last half decides on "enough": what it would leave out counts as read.
        wanted = update.recall or total.recall
        total = replace(update, memory=memory, usage=usage, unfinished=unfinished, recall=wanted)
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
