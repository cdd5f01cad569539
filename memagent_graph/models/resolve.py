"""From a model's name to a reader."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel

from memagent_graph.errors import ConfigurationError, MissingDependencyError
from memagent_graph.readers.chat import ChatReader
from memagent_graph.text.tokens import TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memagent_graph.config import ReadingConfig
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader

EXTRACTIVE = "extractive"


def default_model() -> str:
    """The model to use when none is named: `MEMAGENT_MODEL`, or else the built-in reader."""
    return os.environ.get("MEMAGENT_MODEL") or EXTRACTIVE


def resolve_reader(
    model: str | BaseChatModel | Reader | None,
    *,
    config: ReadingConfig,
    prompts: Prompts | None = None,
    tokenizer: TokenizerLike = None,
    base_url: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Reader:
    """Make a reader of whatever names one.

    Args:
        model: a reader, a chat model, or a string: "extractive", or what `resolve_model` knows.
            None takes `default_model()`.
        config: the budgets.
        prompts: for a chat model.
        tokenizer: for the built-in reader, to measure its memory.
        base_url: for a model behind an OpenAI-compatible server.
        options: arguments of the model that the string names, besides.

    Raises:
        ConfigurationError: The string names no model.
        MissingDependencyError: The model's package is not installed.
    """
    model = model or default_model()
    if options and (model == EXTRACTIVE or not isinstance(model, str)):
        raise ConfigurationError("Only a model that a string names takes arguments.")
    if model == EXTRACTIVE:
        from memagent_graph.readers.extractive import ExtractiveReader

        return ExtractiveReader(config, load_tokenizer(tokenizer))
    if isinstance(model, str):
        chat = resolve_model(model, base_url=base_url, **(options or {}))
        return ChatReader(chat, prompts=prompts, config=config, name=model)
    if isinstance(model, BaseChatModel):
        return ChatReader(model, prompts=prompts, config=config)
    if callable(getattr(model, "update", None)) and callable(getattr(model, "respond", None)):
        return model
    message = (
        f"A model is a string, a LangChain chat model or a Reader, not {type(model).__name__}."
    )
    raise ConfigurationError(message)


def resolve_model(model: str, *, base_url: str | None = None, **options: Any) -> BaseChatModel:
    """Make a chat model of a string.

    Args:
        model: "openai:<model>" for any OpenAI-compatible server, "vllm:<path or hub id>"
            and "hf:<path or hub id>" for one in this process, or whatever LangChain's
            `init_chat_model` knows ("anthropic:claude-...").
        base_url: of the server; `OPENAI_BASE_URL` by default.
        options: passed on to the model.

    Raises:
        ConfigurationError: The string names no model.
        MissingDependencyError: The model's package is not installed.
    """
    provider, _, name = model.partition(":")
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


_IN_PROCESS = {
    "vllm": ("memagent_graph.models.vllm", "ChatVLLM", "vllm"),
    "hf": ("memagent_graph.models.transformers", "ChatTransformers", "transformers"),
}


def _from_langchain(model: str, options: dict[str, Any]) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        message = (
            f"{model!r} is none of the built-in kinds (extractive, openai:<model>, vllm:<model>, "
            "hf:<model>). For other providers: pip install langchain and the provider's package."
        )
        raise MissingDependencyError(message) from error
    try:
        found = init_chat_model(model, **options)
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error
    except ValueError as error:
        message = f"LangChain does not know the model {model!r}: {error}"
        raise ConfigurationError(message) from error
    if not isinstance(found, BaseChatModel):  # pragma: no cover - only for configurable models
        message = f"{model!r} names no chat model."
        raise ConfigurationError(message)
    return found
