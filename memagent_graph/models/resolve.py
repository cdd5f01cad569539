"""Make a chat model from a model string."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel

from memagent_graph.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable


def resolve_model(model: str, *, base_url: str | None = None, **options: object) -> BaseChatModel:
    """Make a chat model from a model string.

    Args:
        model: "openai:<model>" for any OpenAI-compatible server, "vllm:<path or hub id>" or
            "hf:<path or hub id>" for a model in this process, or a name for LangChain's
            `init_chat_model` ("anthropic:claude-..."). "openai:" may be left out for OpenAI's own
            models ("gpt-4o") and, with `base_url`, for any model.
        base_url: URL of the server; `OPENAI_BASE_URL` by default.
        options: further arguments of the model.

    Raises:
        ConfigurationError: There is no such model, or an option is invalid.
        MissingDependencyError: The model's package is not installed.
    """
    provider, _, name = name_provider(model, base_url).partition(":")
    if provider in _IN_PROCESS and name:
        module, kind, extra = _IN_PROCESS[provider]
        try:
            chat: Callable[..., BaseChatModel] = getattr(import_module(module), kind)
        except ImportError as error:
            message = f'{model!r} needs: pip install "memagent-graph[{extra}]" ({error})'
            raise MissingDependencyError(message) from error
        return chat(model=name, **options)
    if provider == "openai" and name:
        from memagent_graph.models.endpoint import ChatEndpoint

        return ChatEndpoint(model=name, base_url=base_url, **options)
    return _from_langchain(
        model, options if base_url is None else {**options, "base_url": base_url}
    )


def name_provider(model: str, base_url: str | None = None) -> str:
    """Return the model string with its provider, if that can be inferred.

    Args:
        model: the model string, as for `resolve_model`.
        base_url: URL of the server, as for `resolve_model`.
    """
    if ":" not in model and (base_url or _OPENAI.match(model)):
        return f"openai:{model}"
    return model


_OPENAI = re.compile(r"(gpt|chatgpt|o\d)-|o\d$")
"""Names of OpenAI's own models."""
_IN_PROCESS = {
    "vllm": ("memagent_graph.models.vllm", "ChatVLLM", "vllm"),
    "hf": ("memagent_graph.models.transformers", "ChatTransformers", "transformers"),
}


def _from_langchain(model: str, options: dict[str, Any]) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        message = (
            f"{model!r} is not one of the built-in kinds: extractive, openai:<model>, "
            "vllm:<model>, hf:<model>. For other providers, install the provider's package and: "
            'pip install "memagent-graph[langchain]"'
        )
        raise MissingDependencyError(message) from error
    try:
        found = init_chat_model(model, **options)
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error
    except Exception as error:
        message = f"LangChain cannot make the model {model!r}: {error}"
        raise ConfigurationError(message) from error
    if not isinstance(found, BaseChatModel):  # pragma: no cover - only for configurable models
        message = f"{model!r} is not a chat model: name a provider and a model."
        raise ConfigurationError(message)
    return found
