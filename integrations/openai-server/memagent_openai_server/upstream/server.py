"""Send requests to the model's server, and return its responses, both unchanged."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

import httpx
import orjson

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.upstream.errors import broken, reworded
from memagent_openai_server.upstream.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.models.endpoint import ChatEndpoint

_LONGEST_CONNECT = 10.0
_BESIDE = ("/tokenize", "/detokenize")
"""Paths of vLLM that are not below `/v1`."""
_PASSED_ON = ("content-type", "retry-after")


class Upstream:
    """An OpenAI-compatible server.

    Requests carry this server's key; clients' keys are not passed on.

    Args:
        model: the model on that server.
        name: the model's name for clients.
    """

    def __init__(self, model: ChatEndpoint, name: str) -> None:
        self._model, self._name = model.model, name
        base = str(model.base_url).rstrip("/")
        beside = base.removesuffix("/v1")
        # Kept, because taking an address apart is a twelfth of the work for a request.
        self._url = lru_cache(
            lambda path: httpx.URL((beside if path in _BESIDE else base) + path.removeprefix("/v1"))
        )
        self._headers = httpx.Headers(
            {
                "accept": "*/*",
                "accept-encoding": "identity",
                "content-type": "application/json",
                "user-agent": "memagent",
            }
        )
        if model.api_key is not None:
            self._headers["authorization"] = f"Bearer {model.api_key.get_secret_value()}"
        timeout = httpx.Timeout(model.timeout, connect=_LONGEST_CONNECT, pool=None)
        self._extensions = {"timeout": timeout.as_dict()}
        # A client of httpx adds cookies and redirects, which cost more than they are worth here.
        self._transport = Transport(str(model.base_url))

    async def complete(self, body: bytes) -> httpx.Response:
        """Post a chat completion; see `post`."""
        return await self.post("/v1/chat/completions", body)

    async def post(self, path: str, body: bytes) -> httpx.Response:
        """Post a body of JSON, and return the response, which the caller closes.

        The body is sent unchanged, unless the model's name for clients differs from its server's.

        Args:
            path: a path of OpenAI's API, with `/v1`, or of vLLM's, without.
            body: the request's body.

        Raises:
            Refusal: The server refuses the request, is down, or is slow.
        """
        if self._model != self._name:
            body = await unless_small(len(body), _renamed, body, self._model)
        request = httpx.Request(
            "POST",
            self._url(path),
            content=body,
            headers=self._headers,
            extensions=self._extensions,
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TimeoutException as error:
            raise Refusal(504, "The model took too long.", code="upstream_timeout") from error
        except httpx.HTTPError as error:
            message = "The model's server cannot be reached. Try again."
            raise Refusal(503, message, code="upstream_unreachable") from error
        if response.is_success:
            return response
        try:
            payload = await response.aread()
        except httpx.HTTPError as error:
            raise broken() from error
        raise await asyncio.to_thread(reworded, response, payload)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


def _renamed(body: bytes, model: str) -> bytes:
    return orjson.dumps({**orjson.loads(body), "model": model})


def passed_on(response: httpx.Response) -> Mapping[str, str]:
    """Return the headers of a response that the client gets."""
    return {name: response.headers[name] for name in _PASSED_ON if name in response.headers}
