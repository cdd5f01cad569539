"""The node that answers from the memory alone."""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import EmptyReplyError, ModelError
from memagent_graph.graph.chains import chain_of, finish, wait_while_held
from memagent_graph.graph.events import AnswerEvent
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.records import Fold, is_segmented, looks_of, span_of
from memagent_graph.graph.skimming import covered, reopen
from memagent_graph.graph.speaking import Speech
from memagent_graph.graph.state import Changes, ReadingState, Run, fold_of
from memagent_graph.graph.support import warn
from memagent_graph.graph.telling import fallback_event

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Progress


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Answer from the memory alone, and add up the cost of the reading.

    Raises:
        TransientModelError: This attempt failed, and is repeated.
        ModelError: Answering failed for good.
        StoreError: The store cannot be written, and the configuration is strict.
    """
    fold = await wait_while_held(reading, run, fold_of(state))
    memory, warnings = await finish(reading, run, fold)
    # If the answer is not found, what the fold has skipped is read after all.
    again = not state.get("version") and _further(reading, fold) is not None
    speech = Speech(config, run.host, held=again)
    started = monotonic()
    try:
        answer = await reading.reader.respond(state["question"], memory, config=speech.config)
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
    except ModelError as error:
        raise await reading.judged(error, attempt, None, fold["source"]) from error
    progress, source = fold["progress"], fold["source"]
    usage = answer.usage
    progress = {
        **progress,
        "calls": progress["calls"] + 1,
        "input_tokens": progress["input_tokens"] + usage.input_tokens,
        "output_tokens": progress["output_tokens"] + usage.output_tokens,
        "seconds": progress["seconds"] + monotonic() - started,
    }
    if is_segmented(source) or progress["again"]:
        warnings = [*state.get("warnings", ()), *warnings]
    if answer.found is False and not state.get("version"):
        further = _further(reading, {**fold, "progress": progress})
        if further is not None:
            run.emit(fallback_event(reading, run, fold, further))
            return {"document": None, "progress": further, "warnings": warnings}
    speech.release()
    for observer in observers(config):
        observer.answered(step_of(config), answer)
    if (chain := chain_of(reading, run, fold)) is not None:
        await chain.answered(fold)
    coverage = covered(progress, 0, source["length"]) / source["length"]
    run.emit(
        AnswerEvent(
            event="answer",
            agent=reading.name,
            task=run.task,
            question=state["question"],
            source=source["name"],
            answer=answer.final,
            coverage=coverage,
        )
    )
    shaped = {} if answer.structured is None else {"structured_response": answer.structured}
    return {
        **shaped,
        "answer": answer.final,
        "response": answer.text,
        "memory": memory.text,
        "evidence": [asdict(item) for item in memory.evidence],
        "citations": [asdict(item) for item in answer.evidence],
        "usage": {
            "calls": progress["calls"],
            "gated": progress["gated"],
            "recalled": looks_of(progress)["shown"],
            "input_tokens": progress["input_tokens"],
            "output_tokens": progress["output_tokens"],
            "seconds": progress["seconds"],
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "skipped": progress["skipped"],
        "stopped": progress["stopped"],
        "reader": reading.reader.identity.name,
        "version": progress["version"],
        "warnings": [*warnings, *_lost(reading, progress), *warn(memory)],
    }


def _further(reading: Reading, fold: Fold) -> Progress | None:
    """The progress from which to read what was skipped; None if that is not done."""
    most = reading.most_updates(fold)
    if not reading.config.fallback or (most is not None and fold["progress"]["calls"] >= most):
        return None
    return reopen(fold["progress"], span_of(fold["source"]).end)


def _lost(reading: Reading, progress: Progress) -> list[str]:
    """A warning if a memory lost its end."""
    if not progress["cut"]:
        return []
    message = (
        f"The memory was over its budget of {reading.config.memory_tokens} tokens and lost its end "
        "at least once: raise memory_tokens."
    )
    return [message]
