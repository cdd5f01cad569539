"""An OpenAI-compatible server with an unlimited context, in front of any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_openai_server.limits import Limits

if TYPE_CHECKING:
    from memagent_openai_server.app import create_app

__all__ = ["Limits", "create_app"]


def __getattr__(name: str) -> Any:
    """Import the server when it is first asked for: every `memagent` command loads this package."""
    if name != "create_app":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from memagent_openai_server.app import create_app

    return create_app
