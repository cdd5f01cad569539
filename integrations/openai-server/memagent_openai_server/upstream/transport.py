"""Connect to the model's server by aiohttp below httpx, which takes less processor time."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport


class Transport(AiohttpTransport):
    """A transport with a connection for each request, by the environment's proxy.

    Args:
        url: URL of the server.
    """

    def __init__(self, url: str) -> None:
        super().__init__(client=self._session)
        # Once: aiohttp would look for it in a thread, for each request.
        server = urlsplit(url)
        known = not proxy_bypass(server.hostname or "")
        self._by = getproxies().get(server.scheme) if known else None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; a closed connection is a connection error, not a timeout."""
        try:
            return await super().handle_async_request(request)
        except httpx.TimeoutException as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            raise httpx.ConnectError(str(error)) from error

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, ssl=self.ssl_context)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._by,
            skip_auto_headers=("user-agent",),
        )
