"""What a server says of the models that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError

if TYPE_CHECKING:
    from openai.pagination import AsyncPage
    from openai.types import Model

_WINDOW_NAMES = ("max_model_len", "context_length", "context_window", "max_context_length")
"""What vLLM and SGLang, OpenRouter and Together, Groq, and Mistral call it."""


def windows(listed: AsyncPage[Model]) -> dict[str, int | None]:
    """Names of the models in the reply to `GET /models`, with their context lengths in tokens.

    A length is None where the server does not tell it.
    """
    return {model.id: _window(model) for model in getattr(listed, "data", None) or ()}


def window_of(model: str, listed: AsyncPage[Model]) -> int | None:
    """Context length in tokens of one of the listed models, None where the server does not tell.

    Raises:
        ModelError: There is no such model. Said of vLLM only: other servers know models by more
            names than they list, or take any.
    """
    known = windows(listed)
    exact = any(getattr(entry, "owned_by", None) == "vllm" for entry in listed.data or ())
    if exact and model not in known:
        message = f"The server does not know the model {model!r}: it serves {', '.join(known)}."
        raise ModelError(message)
    return known.get(model)


def _window(model: Model) -> int | None:
    found = (getattr(model, name, None) for name in _WINDOW_NAMES)
    return next((length for length in found if isinstance(length, int)), None)
