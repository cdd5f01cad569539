"""The roots of a client, outside of which nothing is read for it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context, ListRoots, Resolve
from mcp.types import ListRootsResult

if TYPE_CHECKING:
    from collections.abc import Sequence


async def ask_for_roots(context: Context[Any, Any]) -> ListRoots | None:
    """Ask a client for its roots, if it offers any and is on this machine.

    They are asked for at each reading, so that a change applies from the next reading on, even if
    the client does not report it.
    """
    offers = context.client_capabilities is not None and context.client_capabilities.roots
    return ListRoots() if offers and _on_this_machine(context) else None


ClientRoots = Annotated[ListRootsResult | None, Resolve(ask_for_roots)]
"""The roots that a client lists; None if it offers none."""


def addresses(roots: ListRootsResult | None) -> Sequence[str] | None:
    """Return the addresses of a client's roots; None if it offers none."""
    return None if roots is None else [str(root.uri) for root in roots.roots]


def _on_this_machine(context: Context[Any, Any]) -> bool:
    """Whether the client runs on this machine, so that its folders are ours."""
    request = context.request_context.request
    if request is None:  # standard input and output
        return True
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:  # a proxy reports something else
        return False
