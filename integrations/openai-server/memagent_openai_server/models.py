"""The models of a server, each with its reader and budgets, by the names that clients use."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from pydantic import ConfigDict, Field, SkipValidation, TypeAdapter, ValidationError

from memagent_graph.config import ReadingConfig
from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.reader import for_notes
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.reading import check_window
from memagent_graph.memory.items import check_namespace
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.models.reply import CLOSING, OPENING, find_ending, is_tag
from memagent_graph.readers.base import Answer, Reader
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.resolve import default_model, resolve_reader
from memagent_graph.templates import ANSWER_PROMPT, PLAIN_ANSWER_PROMPT
from memagent_graph.text.tokens import load_tokenizer
from memagent_http.refusals import Refusal
from memagent_openai_server.access import log
from memagent_openai_server.memories import Memories, flush
from memagent_openai_server.upstream import LocalModel, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.evidence.places import Memory
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Identity, Merge, Step, Update
    from memagent_graph.text.tokens import TokenizerLike
    from memagent_openai_server.access import Limits

T = TypeVar("T")

_WISH = "memagent_wish"
_UNSAID = Answer("remembered", "remembered")
BOX = "\\boxed{"


@dataclass
class Wish:
    """An answer from what is `known` of the user, too; the reader says if the model was cut off."""

    known: str = ""
    is_cut_off: bool = False


class ServedReader(Reader):
    r"""Reads like `reader`, but its answer is the whole reply, without a `\boxed{}`.

    If the reader's own answer prompt asks for a `\boxed{}`, it is kept. Calls wait for a slot in
    the order in which they come, so that readings take turns. The built-in reader computes in a
    thread, one call at a time.
    """

    def __init__(self, reader: Reader, config: ReadingConfig, slots: int) -> None:
        self._reader = self._speaker = reader
        self._computes = isinstance(reader, ExtractiveReader)
        self._slots = asyncio.Semaphore(1 if self._computes else slots)
        self.speaks, self.habits = False, Habits()
        if isinstance(reader, ChatReader):
            prompts, name = reader.prompts, reader.identity.name
            if prompts.answer == ANSWER_PROMPT:
                prompts = prompts.model_copy(update={"answer": PLAIN_ANSWER_PROMPT})
            self._speaker = ChatReader(reader.model, prompts=prompts, config=config, name=name)
            self.speaks = "\\boxed" not in prompts.answer
        self.model = getattr(reader, "model", None)
        self.shortens, self.standing = reader.shortens, reader.standing
        self.shows_passages, self.concurrency = reader.shows_passages, reader.concurrency

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        """The identity of the reader, which may learn more about its model."""
        return self._reader.identity

    @property
    def adds(self) -> bool:  # type: ignore[override]
        """Whether the reader adds, which the size of its model decides."""
        return self._reader.adds

    def config(self, wish: Wish | None) -> RunnableConfig:
        """Return the config of a reading, with an answer or, for None, without one."""
        return {"configurable": {_WISH: wish}, "callbacks": [self.habits]}

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """Whether something is remembered of the user."""
        wish = _wish_in(config)
        return bool(wish and wish.known)

    async def prepare(self) -> Identity:
        """Prepare the reader."""
        return await self._reader.prepare()

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Read a chunk."""
        return await self._call(partial(self._reader.update, step, config=config))

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Merge memories."""
        merge = partial(self._reader.merge, question, memories, config=config)
        return await self._call(merge)

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer; without a wish, return a placeholder."""
        wish = _wish_in(config)
        if wish is None:  # the model itself will answer, with more than text
            return _UNSAID
        if wish.known:
            memory = replace(memory, text=f"{memory.text}\n\n{wish.known}".strip())
        answer = await self._call(partial(self._speaker.respond, question, memory, config=config))
        wish.is_cut_off = find_ending(answer.finish_reason) == "cut off"
        return replace(answer, final=unbox(answer.text)) if self.speaks else answer

    async def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._slots:
            if self._computes:
                return await asyncio.to_thread(lambda: asyncio.run(call()))
            return await call()


def _wish_in(config: RunnableConfig | None) -> Wish | None:
    found: Wish | None = (config or {}).get("configurable", {}).get(_WISH)
    return found


class Habits(AsyncCallbackHandler):
    """Learns from complete replies whether the chat template opens a model's reasoning.

    While a reply may begin within it (`hold`), only its end shows the answer.
    """

    hold = True
    _known = False

    async def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Look at a reply."""
        reply = response.generations[0][0].text
        closed = next((tag for tag in CLOSING.finditer(reply) if is_tag(reply, tag)), None)
        found = closed is not None and not OPENING.search(reply, 0, closed.start())
        if found or not self._known:
            self.hold, self._known = found, True


def unbox(text: str) -> str:
    r"""Remove the `\boxed{` and `}` around an answer, which some models have learned to write."""
    while (start := text.find(BOX)) >= 0:
        begin = end = start + len(BOX)
        depth = 1
        while end < len(text) and depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        text = text[:start] + text[begin : end if depth else end - 1] + text[end:]
    return text


ModelLike: TypeAlias = str | BaseChatModel | Reader | None
"""A model, as for `create_memagent`."""

_UNKNOWN = (
    "its context is unknown: give --window, since a server may cut longer requests without a word"
)


@dataclass(frozen=True)
class Served:
    """One of several models; a table of `memagent serve --models` has the same fields.

    Attributes:
        model: the model, as for `create_memagent`.
        base_url: URL of its server; None takes the one for all models.
        window: context length in tokens; None asks its server.
        key: environment variable with its server's key; None takes the provider's own.

    Examples:
        >>> from memagent_openai_server import Served, create_app
        >>> large = Served("openai:Qwen/Qwen2.5-7B-Instruct", base_url="http://localhost:8000/v1")
        >>> app = create_app({"large": large, "extractive": "extractive"})
    """

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: Annotated[ModelLike, SkipValidation]
    base_url: str | None = None
    window: Annotated[int, Field(ge=1)] | None = None
    key: str | None = None


Catalogue: TypeAlias = Mapping[str, ModelLike | Served]
"""Models by the names that clients use."""


class Service:
    """The model, store and budgets that all requests share."""

    def __init__(
        self,
        served: Served,
        name: str | None,
        *,
        store: BaseStore,
        namespace: Sequence[str],
        config: ReadingConfig | None,
        prompts: Prompts | None,
        tokenizer: TokenizerLike,
        limits: Limits,
        remember: bool,
    ) -> None:
        model, options = served.model or default_model(), None
        if served.key is not None:
            if not os.environ.get(served.key):
                message = f"Set the environment variable {served.key}, the key of {name!r}."
                raise ConfigurationError(message)
            options = {"api_key": os.environ[served.key]}
        tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        self.config = config or ReadingConfig()
        self.limits = limits
        reader = resolve_reader(
            model,
            config=self.config,
            prompts=prompts,
            tokenizer=tokenizer,
            base_url=served.base_url,
            options=options,
        )
        known = reader.identity
        own = model.partition(":")[2] or model if isinstance(model, str) else known.name
        self.name = name or own
        self.counter = load_tokenizer(tokenizer or known.tokenizer)
        self.store = store
        self._namespace = check_namespace(namespace)
        self._memories: dict[str | None, Memories] = {}
        # None for the built-in reader, which only quotes:
        self.chat = reader.model if isinstance(reader, ChatReader) else None
        self.upstream: Upstream | LocalModel | None = None
        if isinstance(self.chat, ChatEndpoint):
            self.upstream = Upstream(self.chat, self.name)
        elif self.chat is not None:
            self.upstream = LocalModel(self.chat, self.name)
        self.remember: Callable[..., ConversationMemory] | None = None
        if remember:
            self.remember = partial(
                ConversationMemory,
                for_notes(reader),
                config=self.config,
                tokenizer=tokenizer,
                ttl=self.config.ttl,
            )
        self.stopping = asyncio.Event()
        self._window = served.window
        self.reader = ServedReader(reader, self.config, self.limits.readings)
        self.agent = create_memagent(self.reader, config=self.config, tokenizer=tokenizer)

    def memories(self, tenant: str | None) -> Memories:
        """Return the memories of a key; None if the server has no keys."""
        if tenant not in self._memories:
            place, budgets = (self.store, tenant, self._namespace), (self.config, self.counter)
            self._memories[tenant] = Memories(*place, *budgets, self.remember)
        return self._memories[tenant]

    async def window(self) -> int | None:
        """Return the model's context in tokens, or None if it has none or is unknown."""
        if self._window is None and self.chat is not None:
            self._window = (await self.reader.prepare()).window_tokens
        return self._window or self.reader.identity.window_tokens

    async def aclose(self) -> None:
        """End background work, and close this loop's connections to the model's server."""
        await flush(self._memories.values())
        if isinstance(self.upstream, Upstream):
            await self.upstream.aclose()
        if isinstance(self.chat, ChatEndpoint):
            await self.chat.aclose()


class Models(dict[str, Service]):
    """The services of a server by the names of their models, with a common store and shutdown."""

    def __init__(
        self,
        model: ModelLike | Catalogue,
        *,
        base_url: str | None,
        window: int | None,
        **options: Any,
    ) -> None:
        catalogue = model if isinstance(model, Mapping) else {None: model}
        if not catalogue:
            raise ConfigurationError("The map of models is empty: name at least one.")
        services = []
        for name, each in catalogue.items():
            own = each if isinstance(each, Served) else Served(each)
            own = replace(own, base_url=own.base_url or base_url, window=own.window or window)
            services.append(Service(own, name, **options))
        self.first = services[0]
        for service in services:
            service.stopping = self.first.stopping
        super().__init__({service.name: service for service in services})

    def named(self, name: str) -> Service:
        """Return the service of the model that a request names."""
        found = self.get(name)
        if found is None:
            known = ", ".join(map(repr, self))
            message = f"The model {name[:200]!r} does not exist: this server has {known}."
            raise Refusal(404, message, code="model_not_found", param="model")
        return found

    async def card(self, name: str) -> dict[str, Any]:
        """Return a model's entry in the list of models."""
        card = {"id": name, "object": "model", "created": 0, "owned_by": "memagent"}
        window = await self.named(name).window()
        return card if window is None else {**card, "max_model_len": window}

    async def check(self) -> None:
        """Check all models before the first request.

        One of several models may be too small to read, such as one for embeddings. Its requests are
        only passed on, and its users are not remembered.
        """
        refused, fits = None, False
        for service in self.values():
            try:
                window = await service.window()
                check_window(service.reader.identity, service.config, question_tokens=0)
            except ConfigurationError as error:
                refused, service.remember = error, None
                log.warning("only passed on", extra={"fields": {"model": service.name}})
                continue
            fits = True
            if service.chat is not None and window is None:
                log.warning(_UNKNOWN, extra={"fields": {"model": service.name}})
        if refused is not None and not fits:
            raise refused

    async def aclose(self) -> None:
        """End all readings, and close all connections."""
        self.first.stopping.set()
        for service in self.values():
            await service.aclose()


_ENTRIES = TypeAdapter(dict[Annotated[str, Field(min_length=1)], Served])


def models_from_file(file: Path) -> dict[str, Served]:
    """Return the models in a TOML file, one per table."""
    try:
        return _ENTRIES.validate_python(tomllib.loads(file.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        raise ConfigurationError(message) from None
    except (OSError, ValueError) as error:
        message = f"The models in {file} cannot be read: {error}. Check the path and the TOML."
        raise ConfigurationError(message) from error
