"""From a model's name to a chat model."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel

from memagent_graph.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable


def resolve_model(model: str, *, base_url: str | None = None, **options: object) -> BaseChatModel:
    """Make a chat model of a string.

    Args:
        model: "openai:<model>" for any OpenAI-compatible server, "vllm:<path or hub id>"
            and "hf:<path or hub id>" for one in this process, or whatever LangChain's
            `init_chat_model` knows ("anthropic:claude-..."). The provider may be left out of the
            names of OpenAI's models ("gpt-4o") and, with `base_url`, of the server's.
        base_url: of the server; `OPENAI_BASE_URL` by default.
        options: passed on to the model.

    Raises:
        ConfigurationError: The string names no model.
        MissingDependencyError: The model's package is not installed.
    """
    provider, _, name = named(model, base_url).partition(":")
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


def named(model: str, base_url: str | None = None) -> str:
    """The model's whole name: with its provider, if that can be told.

    Args:
        model: as for `resolve_model`.
        base_url: likewise.
    """
    if ":" not in model and (base_url or _OPENAI.match(model)):
        return f"openai:{model}"
    return model


_OPENAI = re.compile(r"(gpt|chatgpt|o\d)-|o\d$")
"""Names that are OpenAI's own."""
_IN_PROCESS = {
    "vllm": ("memagent_graph.models.vllm", "ChatVLLM", "vllm"),
    "hf": ("memagent_graph.models.transformers", "ChatTransformers", "transformers"),
}


def _from_langchain(model: str, options: dict[str, Any]) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        message = (
            f"{model!r} is none of the built-in kinds: extractive, openai:<model>, vllm:<model>, "
            'hf:<model>. For other providers: pip install "memagent-graph[langchain]" and the '
            "provider's package."
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
        message = f"{model!r} does not name a chat model."
        raise ConfigurationError(message)
    return found
