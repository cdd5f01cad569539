"""Event loops in threads of their own, and one that the process shares for synchronous code.

A loop of its own for each call would not do: HTTP clients keep their connections on the loop
that opened them. Nor would the caller's thread: in a notebook it already runs a loop.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial, wraps
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

T = TypeVar("T")
P = ParamSpec("P")

_cancelled: ContextVar[tuple[threading.Event, ...]] = ContextVar("memagent_cancelled", default=())
_held_up: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar(
    "memagent_held_up", default=None
)


class LoopThread:
    """An event loop that runs in a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    _known: ClassVar[dict[str, LoopThread]] = {}
    _finding: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, name: str) -> LoopThread:
        """Return the loop that all of this process share by its name."""
        with cls._finding:
            found = cls._known.get(name)
            if found is None or found.pid != os.getpid():  # threads do not survive a fork
                found = cls._known[name] = cls(name)
            return found

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run `coroutine` on this loop and wait for its result in this thread.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
        """
        return _result(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run `coroutine` on this loop from another; cancelling the one cancels the other."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def iterate(self, parts: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over a generator on this loop; it is closed when the iteration ends.

        It runs ahead of the iteration: meant for streams that fit into memory.
        """
        found: SimpleQueue[tuple[T, ...]] = SimpleQueue()  # an empty one follows the last
        future = self._run_through(parts, found.put)
        try:
            while part := found.get():
                yield part[0]
            future.result()
        finally:
            future.cancel()

    async def aiterate(self, parts: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Do as `iterate` does, on another loop."""
        found: asyncio.Queue[tuple[T, ...]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(part: tuple[T, ...]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(found.put_nowait, part)

        future = self._run_through(parts, put)
        try:
            while part := await found.get():
                yield part[0]
            future.result()
        finally:
            future.cancel()

    def _run_through(
        self, parts: AsyncGenerator[T, None], put: Callable[[tuple[T, ...]], None]
    ) -> Future[None]:
        async def run_through() -> None:
            async with aclosing(parts):
                async for part in parts:
                    put((part,))

        future = asyncio.run_coroutine_threadsafe(run_through(), self.loop)
        future.add_done_callback(lambda _: put(()))
        return future

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            with suppress(KeyboardInterrupt, SystemExit):  # raised where the task is awaited
                self.loop.run_forever()


_SHARED = "memagent-loop"
_TICK = 0.02
"""Seconds between two looks whether work on another loop is done, or that loop has ended."""


def wait_for(coroutine: Coroutine[object, object, T]) -> T:
    """Run `coroutine` to its end and return its result; context variables are handed over.

    An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
    """
    before = _held_up.set(find_loop() or _held_up.get())
    try:
        return _result(_begin(coroutine))
    finally:
        _held_up.reset(before)


def to_sync(work: Callable[P, Coroutine[object, object, T]]) -> Callable[P, T]:
    """The synchronous face of a coroutine function, or method, with its docstring."""

    @wraps(work)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(work(*args, **kwargs))

    return wait


def find_held_up_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that stands still until this coroutine returns, if synchronous code waits."""
    return _held_up.get()


async def see_checkpoints(
    checkpointer: BaseCheckpointSaver[Any], see: Callable[[CheckpointTuple], object]
) -> None:
    """Call `see` with every checkpoint, also of a checkpointer that has only its sync side."""
    try:
        async for found in checkpointer.alist(None):
            see(found)
    except NotImplementedError:
        await asyncio.to_thread(lambda: [*map(see, checkpointer.list(None))])


async def ask_saver(saver: BaseCheckpointSaver[Any], call: str, *args: Any, **options: Any) -> Any:
    """Call a method of a checkpointer, which may have only its sync side."""
    try:
        return await getattr(saver, f"a{call}")(*args, **options)
    except NotImplementedError:
        return await asyncio.to_thread(getattr(saver, call), *args, **options)


def name_thread(configurable: Mapping[str, Any]) -> Any:
    """Return the id of a run's thread as LangGraph's checkpoints have it: a text, but for 0."""
    thread = configurable["thread_id"]
    return thread and str(thread)


def soon(call: Callable[[], object]) -> None:
    """Call on the loop of synchronous code, from any thread, with nothing of its context."""
    LoopThread.of(_SHARED).loop.call_soon_threadsafe(call, context=Context())


async def run_on(
    loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, None]]
) -> bool:
    """Do `work` on another loop; False if there is none, or it ended before it was done."""
    if loop is None or loop is asyncio.get_running_loop() or not loop.is_running():
        return False
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        task = loop.create_task(work())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - its loop may end
        tasks.append(task)

    try:
        loop.call_soon_threadsafe(begin)
    except RuntimeError:  # it was closed at this moment
        return False
    while not any(task.done() for task in tasks) and loop.is_running():  # noqa: ASYNC110 - an
        await asyncio.sleep(_TICK)  # ended loop sets no event
    for task in tasks:
        if task.done():
            return not (task.cancelled() or task.exception())
        coroutine: Any = task.get_coro()
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # nobody will await it
            coroutine.close()
    return False


def at_exit(work: Callable[[], object]) -> None:
    """Do `work` when the interpreter ends, as long as threads can still be begun.

    `atexit` is too late for that: what asks for an address or writes to a file would fail.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(work)


def find_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, which waits while synchronous code does; None without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def is_shared_loop() -> bool:
    """Whether this runs on the loop that the process shares for synchronous code."""
    return threading.current_thread().name == _SHARED


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Begin `work` in a thread of its own: a pool's threads would not survive a fork."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(work())
        except StopIteration as error:  # no event loop takes it: who awaits it would wait for ever
            said = f"{error!r} was raised, which ends no iteration here."
            future.set_exception(RuntimeError(said))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="memagent-work", daemon=True).start()
    return future


class LateError(Exception):
    """The time for a piece of work was over before it was done."""


async def to_thread(work: Callable[[], T], seconds: float | None = None) -> T:
    """`asyncio.to_thread`, for work that is to end when nobody waits for it (`is_cancelled`).

    `LateError` is raised if it takes longer than these seconds.
    """
    try:
        with _cancel_after():
            async with asyncio.timeout(seconds) as waiting:
                return await asyncio.to_thread(work)
    except TimeoutError as error:
        if waiting.expired():
            raise LateError from error
        raise


@contextmanager
def _cancel_after() -> Iterator[None]:
    """Cancel the work that is begun in a block, when that ends (`is_cancelled`)."""
    cancelled = threading.Event()
    before = _cancelled.set((*_cancelled.get(), cancelled))
    try:
        yield
    finally:
        cancelled.set()
        _cancelled.reset(before)


def is_cancelled() -> bool:
    """Whether this work was begun by `to_thread`, and nobody waits for it any more."""
    return any(cancelled.is_set() for cancelled in _cancelled.get())


def work_through(works: Sequence[tuple[Callable[[], T], bool]], at_once: int) -> list[T]:
    """Do several pieces of work, and return their results in order.

    Each comes with whether it may run in a thread beside the others, of which there are at most
    `at_once`. If one raises, or at an interrupt, the others end (`is_cancelled`).
    """
    with ThreadPoolExecutor(at_once, "memagent-work") as pool, _cancel_after():
        begun = [
            pool.submit(copy_context().run, work).result if beside else work
            for work, beside in works
        ]
        try:
            return [result() for result in begun]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(coroutine: Coroutine[object, object, T]) -> Future[T]:
    shared = LoopThread.of(_SHARED)
    if threading.current_thread() is shared.thread:
        # Something on the shared loop calls back into synchronous code: waiting here for
        # this very loop would never end.
        return in_thread(partial(copy_context().run, asyncio.run, coroutine))
    return asyncio.run_coroutine_threadsafe(coroutine, shared.loop)


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
