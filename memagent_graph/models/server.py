"""An OpenAI-compatible server, shared by all calls of a model: turns, errors, list of models."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from codecs import BOM_UTF8
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from openai import (
    DEFAULT_CONNECTION_LIMITS,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    OpenAIError,
    Timeout,
)

from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.models.completion import count_of
from memagent_graph.models.failures import is_unreachable, model_error
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Sequence,
    )

    from openai import AsyncStream
    from openai.pagination import AsyncPage
    from openai.types import Model

_WINDOW_NAMES = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio, where `max_context_length` is what it could load
    "context_length",  # OpenRouter, Together
    "context_window",  # Groq
    "max_context_length",  # Mistral
)
"""Names of the context length."""


def windows(listed: AsyncPage[Model]) -> dict[str, int | None]:
    """Return the models in a reply to `GET /models`, with their context lengths in tokens.

    A length is None if the server does not report it.
    """
    entries = getattr(listed, "data", None)
    entries = entries if isinstance(entries, list) else []
    return {str(name): _window(model) for model in entries if (name := getattr(model, "id", None))}


def window_of(model: str, listed: AsyncPage[Model]) -> int | None:
    """Return the context length of a listed model in tokens; None if it is not reported.

    Raises:
        ModelError: The server is vLLM, and does not list the model. Other servers accept more
            names than they list.
    """
    known = windows(listed)
    exact = known and any(getattr(entry, "owned_by", None) == "vllm" for entry in listed.data)
    if exact and model not in known:
        message = f"The server does not know the model {model!r}: it serves {', '.join(known)}."
        raise ModelError(message)
    return known.get(model)


def _window(model: Model) -> int | None:
    found = (count_of(getattr(model, name, None)) for name in _WINDOW_NAMES)
    return next((length for length in found if length), None)


T = TypeVar("T")


_LONGEST_REST = 0.5
"""Longest wait for the end of a stream after its "[DONE]", in seconds; then it is closed."""


@asynccontextmanager
async def read_events(
    stream: AsyncStream[T],
) -> AsyncIterator[AsyncGenerator[dict[str, Any] | None, None]]:
    """Yield the events of `stream`, as parsed JSON; close it at the end.

    The last is None if the server says that the stream is complete, which the SDK does not report.
    A reply that is no stream but one JSON object is its only event.

    The HTTP library's generators do not end if a stream fails or is abandoned. Held by the error's
    traceback and by a cycle, they would be left to the garbage collector, which may run in another
    thread.
    """
    try:
        lines = _read_lines(stream)
        async with stream, aclosing(lines), aclosing(_parse_events(lines)) as events:
            yield events
    except Exception as error:
        clear_frames(error.__traceback__)
        raise
    finally:
        vars(stream).clear()


async def _read_lines(stream: AsyncStream[Any]) -> AsyncGenerator[bytes, None]:
    """The lines of a reply without their ends, and an empty one after the last."""
    held = bytearray()
    async with aclosing(stream.response.aiter_bytes()) as parts:
        async for part in parts:
            held += part
            if b"\n" in part:
                *lines, held = held.split(b"\n")
                for line in lines:
                    yield bytes(line.removesuffix(b"\r"))
    yield bytes(held)
    yield b""


async def _parse_events(
    lines: AsyncGenerator[bytes, None],
) -> AsyncGenerator[dict[str, Any] | None, None]:
    event: list[bytes] = []
    is_whole: bool | None = None
    async for read in lines:
        line = read
        if is_whole is None and line.strip():
            line = line.removeprefix(BOM_UTF8)
            is_whole = line.lstrip().startswith(b"{")
        if is_whole or line.startswith(b"data:"):
            event.append(line if is_whole else line[5:])
        elif event and not line:
            data, event = b"\n".join(event).strip(), []
            if data.startswith(b"[DONE]"):
                with suppress(Exception):  # a connection that is read to its end can be used again
                    async with asyncio.timeout(_LONGEST_REST):
                        async for _ in lines:
                            pass
                yield None
                return
            found = json.loads(data) if data else None
            if isinstance(found, dict):
                yield found
    if is_whole:
        yield json.loads(b"\n".join(event))


_LONGEST_CONNECT = 10.0
"""Longest wait for a connection, or for the list of models, in seconds."""
_LONGEST_IDLE = 30.0
"""Time for which a connection without a call is kept, in seconds: a busy graph takes some."""
_ASK_AGAIN = 60.0
"""Time after which a server that did not list its models is asked again, in seconds."""
_NO_KEY = "not-needed"
"""Sent to servers without a key: the SDK requires one."""
_SERVER_FAILURE = 500


def server_thread() -> LoopThread:
    """Return the event loop on which this process talks to all servers, in its thread."""
    global _thread  # noqa: PLW0603 - connections belong to the loop that opened them
    with _lock:
        if _thread is None or _thread.pid != os.getpid():  # threads do not survive a fork
            _thread = LoopThread("memagent-servers")
        return _thread


_thread: LoopThread | None = None
_lock = threading.Lock()


def _close_soon(thread: LoopThread, client: AsyncOpenAI) -> None:
    """Close a client that nobody has any more."""
    if thread.pid == os.getpid():
        asyncio.run_coroutine_threadsafe(client.close(), thread.loop)


@dataclass
class _Opened:
    """The connections of a process, and the turns of its calls."""

    pid: int
    client: AsyncOpenAI
    turns: asyncio.Semaphore
    asking: asyncio.Lock


class Server:
    """The server of a `ChatEndpoint`; its coroutines run on the loop of `server_thread`.

    Args:
        base_url: its URL, up to `/v1`.
        api_key: None for a server without a key.
        timeout: longest silence during a call, and the `patience` of errors of a server that is
            down, in seconds.
        max_concurrency: most calls under way at once.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout: float,
        max_concurrency: int,
    ) -> None:
        self._quick = min(timeout, _LONGEST_CONNECT)
        self._max_concurrency = max_concurrency
        self._options: dict[str, Any] = {
            "api_key": api_key or _NO_KEY,
            "base_url": base_url,
            "timeout": Timeout(timeout, connect=self._quick),
            "max_retries": 0,
        }
        self._timeout = timeout
        self._answered = False
        self._opened: _Opened | None = None
        self._windows: dict[str, int | None] = {}
        self._ask_after = 0.0

    @asynccontextmanager
    async def call(self) -> AsyncIterator[AsyncOpenAI]:
        """Wait for a turn, and yield the client for one call; its errors are converted to ours.

        Raises:
            ModelError: The call failed; see `failures.model_error`.
        """
        opened = self._open()
        async with opened.turns:
            try:
                yield opened.client
            except Exception as error:
                served = await self._list_served() if isinstance(error, NotFoundError) else ()
                failure = model_error(error, served=served)
                if not is_unreachable(error):
                    self._answered |= isinstance(error, APIStatusError)
                elif self._answered and isinstance(failure, TransientModelError):
                    failure.patience = self._timeout  # an address that is wrong never answered
                raise failure from error
            self._answered = True

    async def models(self) -> dict[str, int | None]:
        """Return its models, with their context lengths in tokens, None if not reported.

        Raises:
            ModelError: The server cannot be reached, or refuses.
        """
        return windows(await self._list())

    async def window(self, model: str) -> int | None:
        """Return a model's context length in tokens; the server's answer is kept.

        Returns None if the server does not report it, or cannot be asked; then the first call
        raises the reason.

        Raises:
            ModelError: The server has no model of this name; the message lists those it has.
        """
        async with self._open().asking:
            if model not in self._windows and monotonic() >= self._ask_after:
                try:
                    listed = await self._list()
                except ModelError:
                    self._ask_after = monotonic() + _ASK_AGAIN  # or each of a batch would ask
                    return None
                # A missing model may be loaded later, so its absence is not kept.
                self._windows[model] = window_of(model, listed)
        return self._windows.get(model)

    async def is_healthy(self) -> bool:
        """Return whether the server answers; an error below 500, such as a wrong key, counts."""
        try:
            await self._open().client.models.list(timeout=self._quick)
        except APIStatusError as error:
            return error.status_code < _SERVER_FAILURE
        except OpenAIError:
            return False
        except ValueError:  # an answer that is not JSON is an answer
            return True
        return True

    async def aclose(self) -> None:
        """Close the connections; the next call opens others."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.client.close()

    def _open(self) -> _Opened:
        """Return the client of this process."""
        if self._opened is None or self._opened.pid != os.getpid():
            # The class belongs to the HTTP library that this release of the SDK uses.
            limits = type(DEFAULT_CONNECTION_LIMITS)
            http = DefaultAsyncHttpxClient(
                limits=limits(
                    max_keepalive_connections=self._max_concurrency, keepalive_expiry=_LONGEST_IDLE
                ),
                base_url=self._options["base_url"],
                timeout=self._options["timeout"],
            )
            client = AsyncOpenAI(**self._options, http_client=http)
            turns = asyncio.Semaphore(self._max_concurrency)
            self._opened = _Opened(os.getpid(), client, turns, asyncio.Lock())
            finalize(self, _close_soon, server_thread(), client).atexit = False
        return self._opened

    async def _list(self) -> AsyncPage[Model]:
        try:
            return await self._open().client.models.list(timeout=self._quick)
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error

    async def _list_served(self) -> Sequence[str]:
        try:
            return list(await self.models())
        except ModelError:  # the 404 already says enough
            return ()
