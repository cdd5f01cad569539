"""Make LangGraph nodes, for synchronous and asynchronous code, from one function each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memagent_graph.errors import MemAgentError
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import LateError, to_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.runnables import RunnableConfig
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.runtime import Runtime

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold
    from memagent_graph.graph.state import Answered, Changes, QuestionState, ReadingState, Run

    Questioning = CompiledStateGraph[ReadingState, Run, QuestionState, Answered]
    Segmenting = CompiledStateGraph[ReadingState, Run, Fold, Fold]

State = TypeVar("State")

NO_LIMIT = 2**31
"""Recursion limit in supersteps: a reading ends with the document."""


def question_node(asking: Questioning) -> RunnableCallable:
    """Return a node that answers one of several questions; its failure does not end the others.

    Args:
        asking: the compiled graph of one question.
    """

    def record(state: QuestionState, output: Changes, error: MemAgentError | None) -> Changes:
        failure = {
            "error": None if error is None else str(error),
            "error_type": None if error is None else type(error).__name__,
        }
        who = {"number": state["number"], "question": state["question"], **failure}
        return {"answers": [{**who, **output}]}

    def sync(state: QuestionState, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        try:
            output = asking.invoke(state, _unlimited(config), context=runtime.context)
        except MemAgentError as error:
            return record(state, {}, error)
        return record(state, output, None)

    async def from_async(
        state: QuestionState, config: RunnableConfig, runtime: Runtime[Run]
    ) -> Changes:
        try:
            output = await asking.ainvoke(state, _unlimited(config), context=runtime.context)
        except MemAgentError as error:
            return record(state, {}, error)
        return record(state, output, None)

    return RunnableCallable(sync, from_async, name="question", trace=False)


def fold_node(reading: Segmenting) -> RunnableCallable:
    """Return a node that reads one segment; if it fails, its question fails.

    Args:
        reading: the compiled graph of one fold.
    """

    def sync(state: Fold, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        after = reading.invoke(state, _unlimited(config), context=runtime.context)
        return {"folds": {state["source"]["fold"]: after}}

    async def from_async(state: Fold, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        after = await reading.ainvoke(state, _unlimited(config), context=runtime.context)
        return {"folds": {state["source"]["fold"]: after}}

    return RunnableCallable(sync, from_async, name="fold", trace=False)


def _unlimited(config: RunnableConfig) -> RunnableConfig:
    return {**config, "recursion_limit": NO_LIMIT}


def text_node(
    work: Callable[[Reading, ReadingState, Run], Changes], reading: Reading
) -> RunnableCallable:
    """Return a node that only reads text."""

    def sync(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        if runtime.context.cutter is None:  # a resumed run may convert the document again
            return wait_for(from_async(state, runtime))
        return work(reading, state, runtime.context)

    async def from_async(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        run = runtime.context
        if run.cutter is not None and run.cutter.at_once(state["progress"]["position"]):
            return work(reading, state, run)
        try:
            return await to_thread(partial(work, reading, state, run), reading.seconds_left(run))
        except LateError:
            return {"chunk": None}  # overwrite_memory handles the deadline

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def waiting_node(
    work: Callable[[Reading, State, Run, RunnableConfig, int], Awaitable[Changes]],
    reading: Reading,
) -> RunnableCallable:
    """Return a node that waits for the reader or the store."""

    async def from_async(state: State, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        run, info = runtime.context, runtime.execution_info
        run.config = config
        if run.write is None:
            run.write = runtime.stream_writer
        if run.store is None:
            run.store = reading.store or runtime.store
            run.namespace = reading.namespace
        for observer in observers(config):
            observer.begins(step_of(config))
        return await work(reading, state, run, config, info.node_attempt if info else 1)

    def sync(state: State, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        return wait_for(from_async(state, config, runtime))

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)
