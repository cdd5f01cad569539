"""The server behind this one: what is sent to it is passed on as it is, and so is what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from memagent_graph.errors import ContextLengthError
from memagent_graph.models.failures import model_error
from memagent_openai_server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.models.endpoint import ChatEndpoint

_LONGEST_CONNECT = 10.0
_PASSED_ON = ("content-type", "retry-after", "x-request-id")


class Upstream:
    """An OpenAI-compatible server.

    Its key is this server's own: those of clients are not passed on.

    Args:
        model: the model there.
    """

    def __init__(self, model: ChatEndpoint) -> None:
        headers = {"accept-encoding": "identity"}
        if model.api_key is not None:
            headers["authorization"] = f"Bearer {model.api_key.get_secret_value()}"
        self._client = httpx.AsyncClient(
            base_url=str(model.base_url),
            headers=headers,
            timeout=httpx.Timeout(model.timeout, connect=_LONGEST_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def complete(self, body: bytes) -> httpx.Response:
        """The response to a chat completion, to be closed; an error has been read already.

        Raises:
            Refusal: The server is down, slow, or does not take this server's key.
        """
        headers = {"content-type": "application/json"}
        request = self._client.build_request(
            "POST", "chat/completions", content=body, headers=headers
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TimeoutException as error:
            raise Refusal(504, "The model took too long.", code="upstream_timeout") from error
        except httpx.HTTPError as error:
            message = "The model's server cannot be reached. Try again."
            raise Refusal(503, message, code="upstream_unreachable") from error
        if response.is_success:
            return response
        try:
            await response.aread()
        except httpx.HTTPError as error:
            raise broken() from error
        if response.status_code in (401, 403):
            message = "The model's server does not take the key of this server."
            raise Refusal(502, message, code="upstream_key")
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def passed_on(response: httpx.Response) -> Mapping[str, str]:
    """Headers of a response that are the client's business."""
    return {name: response.headers[name] for name in _PASSED_ON if name in response.headers}


def broken() -> Refusal:
    """For a response that ends before its end."""
    return Refusal(502, "The model's server broke off. Try again.", code="upstream_broken")


def is_too_long(response: httpx.Response) -> bool:
    """Whether a server refused a request because the model's context cannot hold it."""
    if response.is_success:
        return False
    error = model_error(_Said(response.status_code, response.text))
    return isinstance(error, ContextLengthError)


class _Said(Exception):  # noqa: N818 - what a server said
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status
