"""From whatever names a reader to the reader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from langchain_core.language_models import BaseChatModel

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.resolve import named, resolve_model
from memagent_graph.readers.base import Reader
from memagent_graph.readers.chat import ChatReader
from memagent_graph.text.tokens import TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.config import ReadingConfig
    from memagent_graph.models.structured import ResponseFormat
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.verifying import Verify

EXTRACTIVE = "extractive"
_QUOTES = (
    "The built-in reader quotes and cannot answer in a shape: response_format needs a chat model, "
    "such as openai:gpt-4o."
)


def default_model() -> str:
    """The model to use when none is named: `MEMAGENT_MODEL`, or else the built-in reader."""
    return os.environ.get("MEMAGENT_MODEL") or EXTRACTIVE


def resolve_reader(
    model: str | BaseChatModel | Reader | None,
    *,
    config: ReadingConfig,
    prompts: Prompts | None = None,
    tokenizer: TokenizerLike = None,
    verify: Verify | None = None,
    base_url: str | None = None,
    options: Mapping[str, object] | None = None,
    response_format: ResponseFormat | None = None,
) -> Reader:
    """Make a reader of whatever names one.

    Args:
        model: a reader, a chat model, or a string: "extractive", or what `resolve_model` knows.
            None takes `default_model()`.
        config: the budgets.
        prompts: for a chat model.
        tokenizer: for the built-in reader, to measure its memory.
        verify: for a chat model, as `ChatReader` takes it. The built-in reader quotes.
        base_url: for a model behind an OpenAI-compatible server.
        options: arguments of the model that the string names, besides.
        response_format: the shape of a chat model's answers, as `ChatReader` takes it.

    Raises:
        ConfigurationError: The string names no model, or `verify` or `response_format` is for a
            reader that is made already.
        MissingDependencyError: The model's package is not installed.
    """
    model = model or default_model()
    if options and (model == EXTRACTIVE or not isinstance(model, str)):
        raise ConfigurationError("Only a model that a string names takes arguments.")
    if model == EXTRACTIVE:
        if response_format is not None:
            raise ConfigurationError(_QUOTES)
        from memagent_graph.readers.extractive import ExtractiveReader

        return ExtractiveReader(config, load_tokenizer(tokenizer))
    if isinstance(model, str):
        chat = resolve_model(model, base_url=base_url, **(options or {}))
        name = named(model, base_url)
        return ChatReader(
            chat,
            prompts=prompts,
            config=config,
            name=name,
            verify=verify,
            response_format=response_format,
        )
    if isinstance(model, BaseChatModel):
        return ChatReader(
            model, prompts=prompts, config=config, verify=verify, response_format=response_format
        )
    if isinstance(model, Reader):
        if verify is not None:
            raise ConfigurationError("verify= is for a chat model: a Reader marks its own memory.")
        if response_format is not None:
            raise ConfigurationError("response_format= is for a chat model: give it to the Reader.")
        return model
    message = (
        f"A model is a string, a LangChain chat model or a Reader, not {type(model).__name__}."
    )
    raise ConfigurationError(message)
