"""Read many documents at once, and take each result when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import merge_configs
from tqdm.auto import tqdm

from memagent_graph.errors import ConfigurationError
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph import ReadingGraph

Task = Mapping[str, Any]
_END: Any = object()


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one task.

    Attributes:
        id: the task's own, or else its number, counted from 0.
        task: as it was given.
        output: the fields of `ReadingOutput`; None when it failed.
        error: why it failed; None when it did not.
        seconds: that it took.
    """

    id: str
    task: Task
    output: dict[str, Any] | None
    error: Exception | None
    seconds: float


class read_many:  # noqa: N801 - it is called like a function, and has two ways to iterate
    """Read many documents at once: iterate with `for` or `async for` over the results.

    Results come in the order in which they are done. A task that fails gives a result with its
    error, and the others go on. Only `concurrency` tasks are taken at a time, so that they can
    be endless; leaving the loop cancels what still runs. With a store, tasks that were read
    before cost one call each, also by another process; with a checkpointer each task is the
    thread of its id, and one that was stopped goes on where it was.

        for result in read_many(agent, [{"question": "Who pays?", "document": Path("a.txt")}]):
            print(result.id, result.error or result.output["answer"])

    Args:
        agent: made by `create_memagent`.
        tasks: each a mapping of the graph's input (`question`, `document`, ...), with an `id`
            if it has one; other keys are passed through. May be asynchronous.
        concurrency: readings at once. The default is what a vLLM server on one GPU is well
            filled with; more than its `max_num_seqs` only waits.
        config: for each run: callbacks, tags, metadata.
        progress: show a bar on stderr.

    Raises:
        ConfigurationError: `concurrency` is not positive.
    """

    def __init__(
        self,
        agent: ReadingGraph,
        tasks: Iterable[Task] | AsyncIterable[Task],
        *,
        concurrency: int = 64,
        config: RunnableConfig | None = None,
        progress: bool = False,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError("concurrency must be at least 1.")
        self._agent = agent
        self._tasks = tasks
        self._concurrency = concurrency
        self._config = config
        self._progress = progress

    async def __aiter__(self) -> AsyncIterator[Result]:
        total = len(self._tasks) if isinstance(self._tasks, Sized) else None
        async with aclosing(self._results()) as results:
            with tqdm(total=total, unit="document", disable=not self._progress) as bar:
                failed = 0
                async for result in results:
                    failed += result.error is not None
                    bar.set_postfix({"failed": failed}, refresh=False)
                    bar.update()
                    yield result

    def __iter__(self) -> Iterator[Result]:
        results: Any = self.__aiter__()
        try:
            while (result := wait_for(_next(results))) is not _END:
                yield result
        finally:
            wait_for(results.aclose())

    async def _results(self) -> AsyncGenerator[Result, None]:
        tasks = _numbered(self._tasks)
        running: set[asyncio.Task[Result]] = set()
        try:
            while await self._fill(running, tasks):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                await self._fill(running, tasks)  # whoever takes the results may take their time
                for each in done:
                    yield each.result()
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await tasks.aclose()

    async def _fill(
        self,
        running: set[asyncio.Task[Result]],
        tasks: AsyncGenerator[tuple[int, Task], None],
    ) -> bool:
        """Start as many tasks as there is room for; returns whether any run."""
        while len(running) < self._concurrency:
            found = await anext(tasks, None)
            if found is None:
                break
            running.add(asyncio.create_task(self._read(*found)))
        return bool(running)

    async def _read(self, number: int, task: Task) -> Result:
        started = perf_counter()
        name, output, failure = str(number), None, None
        try:
            name = str(task.get("id", number))
            output = await self._output(name, task)
        except Exception as error:  # noqa: BLE001 - one task's failure is not the others'
            failure = error
        return Result(name, task, output, failure, perf_counter() - started)

    async def _output(self, name: str, task: Task) -> dict[str, Any]:
        agent: Any = self._agent
        config = merge_configs(self._config, {"configurable": {"thread_id": name}})
        asked: dict[str, Any] | None = {key: value for key, value in task.items() if key != "id"}
        if agent.checkpointer:
            values = (await agent.aget_state(config)).values
            if "progress" in values and values.get("answer") is None:
                asked = None
        context = {"document": task.get("document")}
        output: dict[str, Any] = await agent.ainvoke(asked, config, context=context)
        return output


async def _numbered(
    tasks: Iterable[Task] | AsyncIterable[Task],
) -> AsyncGenerator[tuple[int, Task], None]:
    number = 0
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield number, task
            number += 1
    else:
        for task in tasks:
            yield number, task
            number += 1


async def _next(results: AsyncIterator[Result]) -> Any:
    return await anext(results, _END)
