"""How the model's server is reached: aiohttp below httpx, which takes less of the processor."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport


class Transport(AiohttpTransport):
    """As many connections as requests, by the proxy that the environment names.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        super().__init__(client=self._session)
        # Once: aiohttp would look for it in a thread, for each request.
        server = urlsplit(url)
        known = not proxy_bypass(server.hostname or "")
        self._by = getproxies().get(server.scheme) if known else None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; a server that hangs up is none that takes too long."""
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
