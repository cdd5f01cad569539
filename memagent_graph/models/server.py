"""An OpenAI-compatible server as all calls of one model see it: turns, failures, what it has."""

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
"""Seconds to wait for a connection or a list of models, which take less time than a reply."""
_ASK_AGAIN = 60.0
"""Seconds after which a server that did not list its models is asked again."""
_NO_KEY = "not-needed"
"""Sent to servers that ask for no key: the SDK insists on one."""
_SERVER_FAILURE = 500


class Server:
    """The one server of a `ChatEndpoint`, from any event loop.

    Args:
        base_url: its address.
        api_key: None for a server that asks for none.
        timeout: seconds without a word during a call, and for which a server that is down is
            waited for.
        max_concurrency: calls under way at once.
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
        """The client for one call, once it is the call's turn and the server is up.

        Whatever is raised within comes out as one of our errors.

        Args:
            queues: see `Turns.turn`.

        Raises:
            ModelError: Of the kind that says what to do.
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
        """Names of its models, with their context lengths where it tells.

        Raises:
            ModelError: It cannot be reached, or refuses.
        """
        return windows(await self._list())

    async def window(self, model: str) -> int | None:
        """Context length of a model in tokens, asked for until the server says what it has.

        None where the server does not tell, or cannot be asked now: the first call will say why.

        Raises:
            ModelError: It has no model of this name; the message says which it has.
        """
        async with self._asking.turn():
            if model not in self._windows and monotonic() >= self._ask_after:
                try:
                    listed = await self._list()
                except ModelError:
                    self._ask_after = monotonic() + _ASK_AGAIN  # else a batch would ask in turn
                    return None
                # One that is not there may be loaded later: then it is asked for again.
                self._windows[model] = window_of(model, listed)
        return self._windows.get(model)

    async def is_healthy(self) -> bool:
        """Whether it answers, even if only to ask for another key."""
        client = await self._connections.client()
        try:
            await client.models.list(timeout=self._quick)
        except APIStatusError as error:
            return error.status_code < _SERVER_FAILURE
        except OpenAIError:
            return False
        except ValueError:  # an answer that is not JSON is one
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
