"""What names a model: a reader, a chat model, a runnable around one, or a string."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from typing_extensions import override

from memagent_graph.errors import ConfigurationError, MissingDependencyError, install_hint
from memagent_graph.readers.base import Reader
from memagent_graph.readers.chat import ChatReader
from memagent_graph.seams import find_identifying_params
from memagent_graph.text.tokens import TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.support import Verify
    from memagent_graph.models.structured import ResponseFormat
    from memagent_graph.prompts import Prompts

T = TypeVar("T")
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


def resolve_model(model: str, *, base_url: str | None = None, **options: Any) -> BaseChatModel:
    """Make a chat model from a model string, for a server at `base_url` if it is an OpenAI one.

    "openai:<model>" is of any OpenAI-compatible server, "vllm:<path or hub id>" or "hf:<path or hub
    id>" of this process, or a name for LangChain's `init_chat_model` ("anthropic:claude-..."). It
    may leave out "openai:" for OpenAI's own models ("gpt-4o") and, with a URL, for any model.

    Raises:
        ConfigurationError: There is no such model, or an option is invalid.
        MissingDependencyError: The model's package is not installed.
    """
    provider, _, name = name_provider(model, base_url).partition(":")
    if provider in _IN_PROCESS and name:
        module, kind, extra = _IN_PROCESS[provider]
        with install_hint(f'{model!r} needs: pip install "memagent-graph[{extra}]"'):
            chat: Callable[..., BaseChatModel] = getattr(import_module(module), kind)
        return chat(model=name, **options)
    if provider == "openai" and name:
        from memagent_graph.models.endpoint import ChatEndpoint

        return ChatEndpoint(model=name, base_url=base_url, **options)
    return _from_langchain(
        model, options if base_url is None else {**options, "base_url": base_url}
    )


class WrappedModel(BaseChatModel):
    """A chat model, if it is known before a call, inside a runnable.

    That retries, falls back, binds or is configurable.
    """

    runnable: Runnable[Any, Any]
    model: BaseChatModel | None = None

    @property
    def _llm_type(self) -> str:
        return "wrapped" if self.model is None else str(self.model._llm_type)  # noqa: SLF001

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {} if self.model is None else find_identifying_params(self.model)

    @property
    def model_name(self) -> str:
        """Name of the model."""
        name = getattr(self.model, "model_name", None) or getattr(self.model, "model", None)
        return str(name or type(self.model or self.runnable).__name__)

    @override
    def invoke(
        self, input: Any, config: RunnableConfig | None = None, *, stop: Any = None, **kwargs: Any
    ) -> AIMessage:
        return cast("AIMessage", self.runnable.invoke(input, config, **kwargs))

    @override
    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, *, stop: Any = None, **kwargs: Any
    ) -> AIMessage:
        return cast("AIMessage", await self.runnable.ainvoke(input, config, **kwargs))

    @override
    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        if self.model is None:
            return cast("Any", self.runnable).bind_tools(tools, **kwargs)  # type: ignore[no-any-return]
        bound: Any = self.model.bind_tools(tools, **kwargs)
        return self.bind(**bound.kwargs)

    @override
    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message = self.runnable.invoke(messages, **kwargs)
        return ChatResult(generations=[ChatGeneration(message=message)])


def unwrap_model(model: T) -> T | WrappedModel:
    """Return what `with_retry`, `with_fallbacks`, `bind` or `init_chat_model` makes as a model.

    What is no runnable around a chat model is returned as it is.
    """
    inner: Any = model
    while isinstance(inner, RunnableBindingBase | RunnableWithFallbacks):
        inner = inner.bound if isinstance(inner, RunnableBindingBase) else inner.runnable
    if isinstance(inner, BaseChatModel):
        return model if inner is model else WrappedModel(runnable=cast("Any", model), model=inner)
    # A configurable model shows what it is by its methods alone.
    known = isinstance(inner, Runnable) and all(hasattr(inner, name) for name in _OF_MODELS)
    return WrappedModel(runnable=cast("Any", model)) if known else model


_OF_MODELS = ("bind_tools", "with_structured_output")


def name_provider(model: str, base_url: str | None = None) -> str:
    """Return the model string with its provider, if that can be inferred."""
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
        found: BaseChatModel = init_chat_model(model, **options)
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error
    except Exception as error:
        message = f"LangChain cannot make the model {model!r}: {error}"
        raise ConfigurationError(message) from error
    return found
