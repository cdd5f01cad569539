"""The roots of a client: what its user has opened there bounds what is read here."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context, ListRoots, Resolve
from mcp.types import ListRootsResult

if TYPE_CHECKING:
    from collections.abc import Sequence


async def ask_for_roots(context: Context[Any, Any]) -> ListRoots | None:
    """Ask a client for its roots, if it offers any and is on this machine.

    They are asked for at each reading, so that a change holds from the next one on, whether or
    not the client reports it.
    """
    offers = context.client_capabilities is not None and context.client_capabilities.roots
    return ListRoots() if offers and _on_this_machine(context) else None


ClientRoots = Annotated[ListRootsResult | None, Resolve(ask_for_roots)]
"""What a client lists; None if it offers no roots."""


def addresses(roots: ListRootsResult | None) -> Sequence[str] | None:
    """The addresses of a client's roots."""
    return None if roots is None else [str(root.uri) for root in roots.roots]


def _on_this_machine(context: Context[Any, Any]) -> bool:
    """Whether folders of the client are folders here."""
    request = context.request_context.request
    if request is None:  # standard input and output
        return True
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:  # a proxy in front says something else
        return False
