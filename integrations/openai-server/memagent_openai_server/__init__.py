"""An OpenAI-compatible server with an unlimited context, in front of any model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memagent_openai_server.access import Limits
    from memagent_openai_server.app import create_app
    from memagent_openai_server.models import Served

__all__ = ["Limits", "Served", "create_app"]

_LATER = {"Limits": "access", "Served": "models", "create_app": "app"}
"""Modules of names imported at their first use, since every `memagent` command loads this."""


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _LATER:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
