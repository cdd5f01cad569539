"""Read many documents at once, and take each result when it is there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import merge_configs
from tqdm.auto import tqdm

from memagent_graph.errors import ConfigurationError, MemAgentError, QuestionError, error_of
from memagent_graph.graph.nodes import CALLS_EACH
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.build import ReadingGraph

Outcome = dict[str, Any] | Exception
"""The fields of `ReadingOutput`, or why there are none."""


async def read_together(
    agent: ReadingGraph,
    questions: Sequence[str],
    document: object,
    config: RunnableConfig | None = None,
) -> list[Outcome]:
    """Read a document once for several questions, each with the budget that it has alone.

    The agent has no checkpointer. Returns the outcome of each question, in order: one that fails
    does not fail the others.
    """
    config = merge_configs(config, {"configurable": {CALLS_EACH: True}})
    reading: Any = agent
    outcomes: dict[int, Outcome] = {}
    while left := [number for number in range(len(questions)) if number not in outcomes]:
        asked = [questions[number] for number in left]
        alone = len(asked) == 1
        given: object = {"question": asked[0]} if alone else {"questions": asked}
        try:
            output = await reading.ainvoke(given, config, context={"document": document})
        except QuestionError as error:  # nothing was read yet: ask the others
            refused = [number for number in left if questions[number] == error.question]
            outcomes |= dict.fromkeys(refused or left, error)
        except MemAgentError as error:
            outcomes |= dict.fromkeys(left, error)
        except Exception as error:  # noqa: BLE001 - a reader's own, which ends the whole pass
            if alone:
                outcomes[left[0]] = error
                continue
            each = (read_together(agent, [question], document, config) for question in asked)
            found = await asyncio.gather(*each)
            outcomes |= {number: outcome for number, [outcome] in zip(left, found, strict=True)}
        else:
            records = [output] if alone else map(_outcome_of, output["answers"])
            outcomes |= zip(left, records, strict=True)
    return [outcomes[number] for number in range(len(questions))]


def _outcome_of(record: Mapping[str, Any]) -> Outcome:
    """Convert the record of one of several questions to its outcome, as if asked alone."""
    if record["error"] is not None:
        return error_of(record["error_type"], record["error"])
    return {key: value for key, value in record.items() if key not in _OF_SEVERAL}


_OF_SEVERAL = {"number", "question", "error", "error_type"}
"""Fields of a record that exist because there are several."""
_OF_ITS_OWN = {"questions", "version", "memory_name"}
"""Keys of a task that is read alone."""


def _is_same_document(*tasks: Mapping[str, object]) -> bool:
    """Whether two tasks ask one question each about one document, and nothing else."""
    if not all(isinstance(task, Mapping) and not _OF_ITS_OWN & task.keys() for task in tasks):
        return False
    one, two = (task.get("document") for task in tasks)
    asked = one is not None and all(isinstance(task.get("question"), str) for task in tasks)
    plain = isinstance(one, str | bytes | PurePath | dict | list | tuple)
    return asked and (one is two or (plain and type(one) is type(two) and one == two))


Task = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one task.

    Attributes:
        id: the task's id, otherwise its number, counted from 0.
        task: the task as it was given.
        output: the fields of `ReadingOutput`; None if the task failed.
        error: why the task failed; None if it did not.
        seconds: duration in seconds.
    """

    id: str
    task: Task
    output: dict[str, Any] | None
    error: Exception | None
    seconds: float


class read_many:  # noqa: N801 - it is called like a function, and has two ways to iterate
    """Read many documents at once: iterate with `for` or `async for` over the results.

    Results come as they finish. A task that fails has a result with its error, and the others
    continue. Only `concurrency` tasks are taken at a time, so there may be endlessly many; leaving
    the loop cancels those that still run. With a store, tasks that were read before cost one call
    each, even if another process read them. With a checkpointer each task is the thread of its id,
    and a stopped task resumes.

    Successive tasks about the same document are read in one pass: it is opened and cut once, and
    each question has its own memory, budget and result. This does not apply with a checkpointer,
    nor to tasks that arrive asynchronously.

    Args:
        agent: made by `create_memagent`.
        tasks: each a mapping of the graph's input (`question`, `document`, ...), with an `id`
            if it has one; other keys are passed through. May be asynchronous.
        concurrency: readings at once. The default fills a vLLM server on one GPU well; more than
            its `max_num_seqs` only wait.
        config: configuration of each run: callbacks, tags, metadata.
        progress: show a bar on stderr.

    Raises:
        ConfigurationError: `concurrency` is not positive.

    Examples:
        >>> from memagent_graph import create_memagent, read_many
        >>> leases = {"quay": "Ann signed the lease.", "mill": "Ben signed the lease."}
        >>> asked = {"question": "Who signed the lease?"}
        >>> tasks = ({**asked, "id": name, "document": text} for name, text in leases.items())
        >>> results = read_many(create_memagent(), tasks)
        >>> sorted((result.id, result.error or result.output["answer"]) for result in results)
        [('mill', 'Ben signed the lease.'), ('quay', 'Ann signed the lease.')]
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
        self._tasks = _number_tasks(asked.tasks)
        self._running: dict[asyncio.Task[list[Result]], int] = {}  # with how many tasks each reads
        self._ahead: tuple[int, Task] | None = None  # taken, and of another document
        streamed = isinstance(asked.tasks, AsyncIterable)
        self._joins = not streamed and not asked.agent.checkpointer
        self._done: deque[Result] = deque()
        self._failed = 0
        total = len(asked.tasks) if isinstance(asked.tasks, Sized) else None
        self._bar = tqdm(total=total, unit=" documents", disable=not asked.progress)

    async def next(self) -> Result | None:
        if not self._done:
            await self._fill()
            if not self._running:
                return None
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self._running[task]
                self._done.extend(task.result())
            await self._fill()  # the caller may be slow to take the results
        result = self._done.popleft()
        self._failed += result.error is not None
        self._bar.set_postfix({"failed": self._failed}, refresh=False)
        self._bar.update()
        return result

    async def close(self) -> None:
        self._bar.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._tasks.aclose()

    async def _fill(self) -> None:
        while (room := self._asked.concurrency - sum(self._running.values())) > 0:
            group = await self._group(room)
            if not group:
                return
            self._running[asyncio.create_task(self._read(group))] = len(group)

    async def _group(self, most: int) -> list[tuple[int, Task]]:
        """The next tasks about one document, none at the end."""
        group: list[tuple[int, Task]] = []
        while len(group) < most:
            found = self._ahead or await anext(self._tasks, None)
            self._ahead = None
            if found is None:
                break
            if group and not _is_same_document(group[0][1], found[1]):
                self._ahead = found
                break
            group.append(found)
            if not self._joins:
                break
        return group

    async def _read(self, group: list[tuple[int, Task]]) -> list[Result]:
        started = perf_counter()
        tasks = [task for _, task in group]
        given = (task if isinstance(task, Mapping) else {} for task in tasks)
        names = [str(task.get("id", at)) for (at, _), task in zip(group, given, strict=True)]
        outcomes: list[Outcome]
        try:
            if len(group) == 1:
                outcomes = [await self._output(names[0], tasks[0])]
            else:
                asked = [str(task["question"]) for task in tasks]
                agent, config = self._asked.agent, self._config(names[0])
                outcomes = await read_together(agent, asked, tasks[0]["document"], config)
        except Exception as error:  # noqa: BLE001 - one task's failure is not the others'
            outcomes = [error] * len(tasks)
        seconds = perf_counter() - started
        return [
            Result(name, task, None, outcome, seconds)
            if isinstance(outcome, Exception)
            else Result(name, task, outcome, None, seconds)
            for name, task, outcome in zip(names, tasks, outcomes, strict=True)
        ]

    def _config(self, name: str) -> RunnableConfig:
        return merge_configs(self._asked.config, {"configurable": {"thread_id": name}})

    async def _output(self, name: str, task: Task) -> dict[str, Any]:
        agent: Any = self._asked.agent
        config = self._config(name)
        if not isinstance(task, Mapping):
            raise QuestionError("A task is a dict with a question and a document.")
        asked: object = {key: value for key, value in task.items() if key != "id"}
        if agent.checkpointer:
            values = (await agent.aget_state(config)).values
            if "progress" in values and values.get("answer") is None:
                asked = None
        context = {"document": task.get("document")}
        output: dict[str, Any] = await agent.ainvoke(asked, config, context=context)
        return output


async def _number_tasks(
    tasks: Iterable[Task] | AsyncIterable[Task],
) -> AsyncGenerator[tuple[int, Task], None]:
    numbers = count()
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield next(numbers), task
    else:
        for task in tasks:
            yield next(numbers), task
