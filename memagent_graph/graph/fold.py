"""One step of the fold: `ask` the reader within its budget, and `apply_update` to the fold.

Every feature is a layer around `ask`; the modules of `memagent_graph.graph.layers` have one each.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    BadRequestError,
    ContextLengthError,
    EmptyReplyError,
    RefusalError,
)
from memagent_graph.evidence.places import to_plain
from memagent_graph.graph.events import observers, step_of
from memagent_graph.graph.reading import FoldStep, FoldUpdate
from memagent_graph.graph.state import add_usage, memory_of, move, skip
from memagent_graph.readers.base import Step, Update, Usage
from memagent_graph.text.chunks import Chunk, next_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.reading import Advance, Call, Reading
    from memagent_graph.graph.state import Fold, Progress, Stopped
    from memagent_graph.text.tokens import Tokenizer

_LONG = 512
"""Tokens from which a prompt may be too long for a model whose context is unknown."""


def _compose(reading: Reading, *, stored: bool) -> Advance:
    """Return `ask` with the layers of a reading around it; those of the store if it is stored."""
    read: Advance = ask
    for layer in reversed(reading.layers):
        if stored or not layer.needs_store:
            read = partial(layer, read=read)
    return read


async def advance(
    call: Call,
    fold: Fold,
    chunk: Chunk,
    *,
    report: Callable[[Fold, Fold, FoldUpdate], None] | None = None,
) -> Fold:
    """Take one step, through all layers, and return the fold after it.

    `report` gets the fold before and after it, and the update, before a named memory is moved.
    """
    number = fold["progress"]["step"] + 1
    memory = memory_of(fold)
    step = FoldStep(fold["question"], memory, chunk, number=number, fold=fold, call=call)
    update = await _compose(call.reading, stored=call.chain is not None)(step)
    after = apply_update(fold, chunk, update)
    if report is not None:
        report(fold, after, update)
    if call.chain is None or after["progress"]["stopped"] not in {"end", "max_calls"}:
        return after
    return await call.chain.end(after)


def apply_update(fold: Fold, chunk: Chunk, update: FoldUpdate) -> Fold:
    """Return the fold after a step. Nothing else overwrites a memory."""
    before, usage, end = fold["progress"], update.usage, fold["scope"]["end"]
    after: Progress = {**before, "stopped": None}
    if update.chunk == "skipped":
        after = skip(before, chunk)
    elif update.chunk == "read":
        position, skipped = move(before, chunk, end)
        after = {
            **add_usage(after, usage),
            "position": position,
            "skipped": skipped,
            "step": before["step"] + 1,
            "tokens": before["tokens"] + chunk.tokens,
            "cut": before["cut"] or update.unfinished,
            "version": update.version or before["version"],
        }
        if update.left_out:
            after["left_out"] = {**Counter(before.get("left_out")) + Counter(update.left_out)}
        if chunk.crowded_out:
            after["not_shown"] = before.get("not_shown", {}) | {str(chunk.start): chunk.crowded_out}
    layers = {**fold["layers"], **update.layers} if update.layers else fold["layers"]
    after["stopped"] = update.stopped or _stop(fold, after)
    changed: Fold = {**fold, "progress": after, "layers": layers}
    return changed if update.memory is None else {**changed, **to_plain(update.memory)}


def _stop(fold: Fold, after: Progress) -> Stopped | None:
    """Why a fold ends after a step; None if it continues."""
    if after["position"] >= fold["scope"]["end"]:
        return "end"
    most = fold["scope"]["calls"]
    return "max_calls" if most is not None and after["calls"] >= most else None


async def ask(step: FoldStep) -> FoldUpdate:
    """Ask the reader for the new memory, and keep it within the budget.

    It takes as many calls as the model's window requires: a chunk that does not fit is halved until
    it does; one that is rejected for an unknown reason, for as long as its prompt may not fit.
    White space costs no call. A memory over its budget is asked for once more, and then cut.
    """
    call, fold = step.call, step.fold
    most = fold["scope"]["calls"]
    again = most is None or fold["progress"]["calls"] + 2 <= most
    asked = _overwrite(call.reading, step, again=again, config=call.config)
    seconds = call.seconds_left()
    update = await (asked if seconds is None else asyncio.wait_for(asked, seconds))
    memory, cut = update.memory, False
    if memory is None:
        tokens = call.reading.count(step.memory.text)
    else:
        memory, tokens, cut = call.reading.within_budget(memory)
    return FoldUpdate(
        memory,
        usage=update.usage,
        finish_reason=update.finish_reason,
        unfinished=update.unfinished or cut,
        fault=update.fault,
        left_out=update.left_out,
        tokens=tokens,
    )


async def _overwrite(
    reading: Reading, step: Step, *, again: bool, config: RunnableConfig | None = None
) -> Update:
    """Ask in as many calls as the window requires; for what is raised, see `ask`."""
    if not (step.chunk.pictures or step.chunk.text.strip()):
        return Update(None)
    started = perf_counter()
    try:
        return await _within_budget(reading, step, again=again, config=config)
    except (ContextLengthError, BadRequestError) as error:
        if isinstance(error, BadRequestError) and not _may_be_too_long(reading, step):
            raise
        failed = Update(None, usage=Usage(1, seconds=perf_counter() - started))
        if len(step.chunk.text) == 1:
            raise
        return await _overwrite_halves(reading, step, failed, again=again, config=config)


def _may_be_too_long(reading: Reading, step: Step) -> bool:
    """Whether a prompt is so long that its length may be why the server rejected it."""
    window = reading.reader.identity.window_tokens
    shown = step.chunk.tokens + reading.tokenizer.count(step.memory.text)
    return shown >= (_LONG if window is None else window // 2)


async def _within_budget(
    reading: Reading, step: Step, *, again: bool, config: RunnableConfig | None
) -> Update:
    """Ask the reader, and once more if its memory is over the budget and it can be shorter."""
    update = await _ask(reading, step, config)
    most, memory = reading.config.memory_tokens, update.memory
    over = memory is not None and (update.unfinished or reading.count(memory.text) > most)
    if not (over and again and reading.reader.shortens):
        return update
    kept, refused, started = update, -1, perf_counter()
    try:
        kept = await _ask(reading, replace(step, shorter=True), config)
        refused = -2
    except (EmptyReplyError, RefusalError):
        pass  # the first memory is cut
    if config is not None:
        for observer in observers(config):
            observer.on_refuse(step_of(config), refused)
    usage = Usage(1, seconds=perf_counter() - started) if kept is update else kept.usage
    return replace(kept, usage=update.usage + usage)


async def _ask(reading: Reading, step: Step, config: RunnableConfig | None) -> Update:
    """Make one call, and return its update with the memory to keep."""
    started = perf_counter()
    update = await reading.reader.update(step, config=config)
    memory, used = update.memory, update.usage
    calls = max(1, used.calls) if reading.reader.adds else 1  # with that of a merge
    usage = Usage(calls, used.input_tokens, used.output_tokens, perf_counter() - started)
    if memory and not memory.text.strip():
        raise EmptyReplyError("The reader returned an empty memory; the previous one is kept.")
    if memory and memory.dropped != step.memory.dropped:
        memory = replace(memory, dropped=step.memory.dropped)
    memory = memory and reading.keep_supported(memory)
    if memory and not memory.text.strip():
        memory = replace(step.memory, dropped=memory.dropped)
    return replace(update, memory=memory, usage=usage)


async def _overwrite_halves(
    reading: Reading, step: Step, before: Update, *, again: bool, config: RunnableConfig | None
) -> Update:
    total = before
    for half in _halves(step.chunk, reading.tokenizer):
        part = replace(step, memory=total.memory or step.memory, chunk=half)
        update = await _overwrite(reading, part, again=again, config=config)
        usage = total.usage + update.usage
        unfinished = total.unfinished or update.unfinished
        memory = update.memory or total.memory
        left_out = {**Counter(total.left_out) + Counter(update.left_out)}
        total = replace(
            update,
            memory=memory,
            usage=usage,
            unfinished=unfinished,
            left_out=left_out,
        )
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
        # Of pictures, each half has the first or the last: they cost more than their marks.
        few = (len(chunk.pictures) + (start == chunk.start)) // 2
        shown = chunk.pictures[:few] if start == chunk.start else chunk.pictures[-few:]
        yield replace(part, pictures=shown) if few else part
        start = part.end
