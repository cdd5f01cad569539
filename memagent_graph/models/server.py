"""An OpenAI-compatible server, shared by all calls of a model: turns, failures, list of models."""

from __future__ import annotations

from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING

from openai import APIStatusError, NotFoundError, OpenAIError, Timeout

from memagent_graph.errors import ModelError
from memagent_graph.models.circuit import Circuit
from memagent_graph.models.connections import Connections
from memagent_graph.models.failures import is_unreachable, model_error
from memagent_graph.models.served import window_of, windows
from memagent_graph.models.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from openai import AsyncOpenAI
    from openai.pagination import AsyncPage
    from openai.types import Model

_LONGEST_CONNECT = 10.0
"""Longest wait for a connection, or for the list of models, in seconds."""
_ASK_AGAIN = 60.0
"""Time after which a server that did not list its models is asked again, in seconds."""
_NO_KEY = "not-needed"
"""Sent to servers without a key: the SDK requires one."""
_SERVER_FAILURE = 500


class Server:
    """The server of a `ChatEndpoint`, for all threads and event loops.

    Args:
        base_url: its URL, up to `/v1`.
        api_key: None for a server without a key.
        timeout: longest silence during a call, and longest wait for a server that is down, in
            seconds.
        max_concurrency: most calls under way at once.
        max_retries: repeats made by the SDK.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout: float,
        max_concurrency: int,
        max_retries: int,
    ) -> None:
        self._quick = min(timeout, _LONGEST_CONNECT)
        self._connections = Connections(
            max_concurrency,
            api_key=api_key or _NO_KEY,
            base_url=base_url,
            timeout=Timeout(timeout, connect=self._quick),
            max_retries=max_retries,
        )
        self._turns = Turns(max_concurrency)
        self._circuit = Circuit(timeout)
        self._asking = Turns(1)
        self._windows: dict[str, int | None] = {}
        self._ask_after = 0.0

    @asynccontextmanager
    async def call(self, *, queues: bool) -> AsyncIterator[AsyncOpenAI]:
        """Wait for a turn and for the server to be up, and yield the client for one call.

        Errors of the call are converted to ours.

        Args:
            queues: whether to wait for a turn; see `Turns.turn`.

        Raises:
            ModelError: The call failed; see `failures.model_error`.
        """
        async with self._turns.turn(queues=queues):
            await self._circuit.passage(self.is_healthy)
            try:
                with self._circuit.under_way() as begun:
                    yield await self._connections.client()
            except Exception as error:
                if is_unreachable(error):
                    self._circuit.failed(begun)
                elif isinstance(error, APIStatusError):
                    self._circuit.succeeded()
                served = await self._served() if isinstance(error, NotFoundError) else ()
                raise model_error(error, served=served) from error
            self._circuit.succeeded()

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
        async with self._asking.turn():
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
        client = await self._connections.client()
        try:
            await client.models.list(timeout=self._quick)
        except APIStatusError as error:
            return error.status_code < _SERVER_FAILURE
        except OpenAIError:
            return False
        except ValueError:  # an answer that is not JSON is an answer
            return True
        return True

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._connections.aclose()

    async def _list(self) -> AsyncPage[Model]:
        client = await self._connections.client()
        try:
            return await client.models.list(timeout=self._quick)
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error

    async def _served(self) -> Sequence[str]:
        try:
            return list(await self.models())
        except ModelError:  # the 404 already says enough
            return ()
