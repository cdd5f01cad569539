"""The memories of a store in a browser: look at them, compare, edit and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memagent_inspector.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """Import the server when it is first asked for: every `memagent` command loads this package."""
    if name != "create_app":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from memagent_inspector.app import create_app

    return create_app
