"""Make a reader from a model string, a chat model or a reader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from langchain_core.language_models import BaseChatModel

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.resolve import name_provider, resolve_model, unwrap_model
from memagent_graph.readers.base import Reader
from memagent_graph.readers.chat import ChatReader
from memagent_graph.text.tokens import TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.verify import Verify
    from memagent_graph.models.structured import ResponseFormat
    from memagent_graph.prompts import Prompts

EXTRACTIVE = "extractive"


def default_model() -> str:
    """Return the model to use if none is given: `MEMAGENT_MODEL`, or else "extractive"."""
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
    """Make a reader from a model.

    Args:
        model: a reader, a chat model, or a string: "extractive", or one that `resolve_model`
            accepts. None stands for `default_model()`.
        config: the budgets, in tokens.
        prompts: the prompts of a chat model; if None, those of its size, as in `ChatReader`.
        tokenizer: counts the built-in reader's memory; no text can forge its control tokens in the
            prompts of a chat model.
        verify: decides which statements are supported, as in `ChatReader`; ignored by the
            built-in reader, which quotes.
        base_url: URL of an OpenAI-compatible server, for a model string.
        options: further arguments of the model, for a model string.
        response_format: the shape of a chat model's answers, as in `ChatReader`.

    Raises:
        ConfigurationError: The string names no model, or `verify`, `response_format` or `options`
            does not apply to `model`.
        MissingDependencyError: The model's package is not installed.
    """
    model = unwrap_model(model or default_model())
    if options and not isinstance(model, str):
        raise ConfigurationError("options= is for a model string: set them on the model itself.")
    if model == EXTRACTIVE:
        if options:
            raise ConfigurationError(
                "The built-in reader takes no model arguments: leave them out."
            )
        if response_format is not None:
            raise ConfigurationError(
                "The built-in reader only quotes: response_format= needs a chat model, such as "
                "openai:gpt-4o."
            )
        from memagent_graph.readers.extractive import ExtractiveReader

        return ExtractiveReader(config, load_tokenizer(tokenizer))
    if isinstance(model, str):
        name = name_provider(model, base_url)
        chat = resolve_model(model, base_url=base_url, **(options or {}))
    elif isinstance(model, BaseChatModel):
        name, chat = None, model
    elif isinstance(model, Reader):
        if verify is not None or response_format is not None:
            raise ConfigurationError(
                "verify= and response_format= are for a chat model: give them to the Reader itself."
            )
        return model
    else:
        message = (
            "model= takes a string, a LangChain chat model or a Reader, not "
            f"{type(model).__name__}."
        )
        raise ConfigurationError(message)
    return ChatReader(
        chat,
        prompts=prompts,
        config=config,
        name=name,
        verify=verify,
        response_format=response_format,
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
    )
