"""Read many documents at once, and take each result when it is there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
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

    from memagent_graph.graph.build import ReadingGraph

Task = Mapping[str, object]


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
        self.agent = agent
        self.tasks = tasks
        self.concurrency = concurrency
        self.config = config
        self.progress = progress

    async def __aiter__(self) -> AsyncIterator[Result]:
        readings = _Readings(self)
        try:
            while (result := await readings.next()) is not None:
                yield result
        finally:
            await readings.close()

    def __iter__(self) -> Iterator[Result]:
        readings = _Readings(self)
        try:
            while (result := wait_for(readings.next())) is not None:
                yield result
        finally:
            wait_for(readings.close())


class _Readings:
    """The readings of one loop over `read_many`."""

    def __init__(self, asked: read_many) -> None:
        self._asked = asked
        self._tasks = _numbered(asked.tasks)
        self._running: set[asyncio.Task[Result]] = set()
        self._done: deque[Result] = deque()
        self._failed = 0
        total = len(asked.tasks) if isinstance(asked.tasks, Sized) else None
        self._bar = tqdm(total=total, unit="document", disable=not asked.progress)

    async def next(self) -> Result | None:
        """The next result, None at the end."""
        if not self._done:
            await self._fill()
            if not self._running:
                return None
            done, self._running = await asyncio.wait(
                self._running, return_when=asyncio.FIRST_COMPLETED
            )
            self._done.extend(task.result() for task in done)
            await self._fill()  # the caller may be slow to take the results
        result = self._done.popleft()
        self._failed += result.error is not None
        self._bar.set_postfix({"failed": self._failed}, refresh=False)
        self._bar.update()
        return result

    async def close(self) -> None:
        """Cancel what still runs, and wait until it is gone."""
        self._bar.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._tasks.aclose()

    async def _fill(self) -> None:
        """Start as many tasks as there is room for."""
        while len(self._running) < self._asked.concurrency:
            found = await anext(self._tasks, None)
            if found is None:
                return
            self._running.add(asyncio.create_task(self._read(*found)))

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
        agent: Any = self._asked.agent
        config = merge_configs(self._asked.config, {"configurable": {"thread_id": name}})
        asked: dict[str, object] | None = {key: value for key, value in task.items() if key != "id"}
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
