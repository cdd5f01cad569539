"""Read a server's list of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError
from memagent_graph.models.generation import count_of

if TYPE_CHECKING:
    from openai.pagination import AsyncPage
    from openai.types import Model

_WINDOW_NAMES = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio, where `max_context_length` is what it could load
    "context_length",  # OpenRouter, Together
    "context_window",  # Groq
    "max_context_length",  # Mistral
)
"""Names of the context length."""


def windows(listed: AsyncPage[Model]) -> dict[str, int | None]:
    """Return the models in a reply to `GET /models`, with their context lengths in tokens.

    A length is None if the server does not report it.
    """
    entries = getattr(listed, "data", None)
    entries = entries if isinstance(entries, list) else []
    return {str(name): _window(model) for model in entries if (name := getattr(model, "id", None))}


def window_of(model: str, listed: AsyncPage[Model]) -> int | None:
    """Return the context length of a listed model in tokens; None if it is not reported.

    Raises:
        ModelError: The server is vLLM, and does not list the model. Other servers accept more
            names than they list.
    """
    known = windows(listed)
    exact = known and any(getattr(entry, "owned_by", None) == "vllm" for entry in listed.data)
    if exact and model not in known:
        message = f"The server does not know the model {model!r}: it serves {', '.join(known)}."
        raise ModelError(message)
    return known.get(model)


def _window(model: Model) -> int | None:
    found = (count_of(getattr(model, name, None)) for name in _WINDOW_NAMES)
    return next((length for length in found if length), None)
