"""The node that reads chunk by chunk and overwrites the memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.graph.chains import chain_of, wait_while_held
from memagent_graph.graph.cutting import cutter_of
from memagent_graph.graph.fold import advance
from memagent_graph.graph.holding import HeldUpError, ending
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.recalling import is_last_look
from memagent_graph.graph.records import Fold, query_of, segment_name, span_of
from memagent_graph.graph.skimming import is_skimmed
from memagent_graph.graph.state import Changes, ReadingState, Run, fold_of
from memagent_graph.graph.telling import chunk_event, skip_event
from memagent_graph.sync import LateError, to_thread
from memagent_graph.text.chunks import Chunk

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.skimming import Skim
    from memagent_graph.graph.versions import Chain


def read_chunk(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Read the chunk at the reading's position."""
    return {"chunk": _chunk(reading, run, fold_of(state))}


def _chunk(reading: Reading, run: Run, fold: Fold) -> Chunk:
    cutter, end = cutter_of(reading, run, fold["source"]), span_of(fold["source"]).end
    if is_last_look(fold["progress"], end):
        return Chunk("", end, end, 0, cutter.source)
    return cutter.chunk(fold)


async def overwrite_memory(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Compute the next memory and move to the next chunk, in one write.

    Raises:
        TransientModelError: This attempt failed, and is repeated.
        ModelError: Reading this chunk failed for good.
        StoreError: The store cannot be written, and the configuration is strict.
        MemoryConflictError: A named memory was changed by others too many times.
    """
    fold = await wait_while_held(reading, run, fold_of(state), reads=True)
    left = reading.seconds_left(run)
    if left is not None and left <= 0:
        return _changes(state, _late(fold))
    chain = chain_of(reading, run, fold)

    def tell(after: Fold, tokens: int, recalled: tuple[Recalled, ...]) -> None:
        for observer in observers(config):
            observer.overwritten(step_of(config), fold, after)
        shown = [item.place for item in recalled]
        run.emit(chunk_event(reading, run, chunk, fold, after, tokens, shown))

    try:
        known = state.get("chunk")
        cut = partial(_chunk, reading, run, fold)
        chunk = await to_thread(cut, left) if known is None else known
        assert run.cutter is not None  # noqa: S101 - the chunk came from it
        skim = await _skim(reading, run.cutter, fold, left)
        left = reading.seconds_left(run)
        end = span_of(fold["source"]).end
        with run.cutter.ahead(chunk, end), ending(chain):
            after = await advance(
                reading,
                fold,
                chunk,
                chain=chain,
                seconds=left,
                tell=tell,
                skim=skim,
                config=config,
            )
    except HeldUpError:  # the reading that is followed is held, or continued from an edit
        return await overwrite_memory(reading, state, run, config, attempt)
    except (LateError, TimeoutError):
        return _changes(state, _late(fold))
    except ModelError as error:
        step = fold["progress"]["step"] + 1
        failure = await reading.judged(error, attempt, step, fold["source"])
        if not isinstance(failure, TransientModelError):
            await _leave(run, fold, chain)
        raise failure from error
    if (
        chunk.text
        and after["progress"]["skipped"]
        and after["progress"]["step"] == fold["progress"]["step"]
    ):
        run.emit(skip_event(reading, run, chunk, after))
    if after["progress"]["stopped"]:
        run.cutter.leave([span_of(fold["source"]).fold])
    return _changes(state, after)


async def _skim(reading: Reading, cutter: Cutter, fold: Fold, left: float | None) -> Skim | None:
    """The skim that decides on the chunk; without one, wait for slower folds, and return None."""
    skims = is_skimmed(reading.config, fold["question"], query_of(fold))
    if skims and not fold["progress"]["again"]:
        return await reading.skims.of(cutter.source, left)
    await cutter.turn(fold, left)
    return None


def _late(fold: Fold) -> Fold:
    """The fold, ended by the deadline."""
    return {**fold, "progress": {**fold["progress"], "stopped": "deadline"}}


def _changes(state: ReadingState, after: Fold) -> Changes:
    """The channels that a step changed; others are not copied to the checkpointer."""
    changed = {key: value for key, value in after.items() if value != state.get(key)}
    return {"document": None, "chunk": None, **changed}


async def _leave(run: Run, fold: Fold, chain: Chain | None) -> None:
    """Keep others from waiting for a fold that failed, and for the folds that fail with it."""
    if run.cutter is not None:
        record = fold["source"]
        whole, segments = record.get("whole"), range(record.get("segments", 1))
        same = [segment_name(whole, number) for number in segments] if whole is not None else []
        run.cutter.leave([span_of(record).fold, *same])
    if chain is not None:
        await chain.abandon()
