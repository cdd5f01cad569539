"""The model, the store and the budgets of one server, and how it reads with them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from langgraph.store.memory import InMemoryStore

from memagent_graph.config import ReadingConfig
from memagent_graph.graph import create_memagent
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.models.resolve import default_model, resolve_reader
from memagent_graph.readers.base import Answer, Reader
from memagent_graph.readers.chat import ChatReader
from memagent_graph.reading import check_window
from memagent_graph.state import Run
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import load_tokenizer
from memagent_openai_server.limits import Limits
from memagent_openai_server.local import LocalModel
from memagent_openai_server.sessions import Sessions
from memagent_openai_server.shapes import Progress
from memagent_openai_server.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Evidence, Update
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import TokenizerLike


class Service:
    """What all requests share.

    Args:
        model: as for `create_memagent`.
        base_url: of the model's server, for an `openai:` model.
        store: where memories are kept; None keeps them in this process.
        config: budgets of a reading.
        prompts: for a chat model.
        tokenizer: counts and cuts.
        window: tokens of the model's context; None asks its server.
        limits: of what clients may send.
    """

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None = None,
        *,
        base_url: str | None = None,
        store: BaseStore | None = None,
        config: ReadingConfig | None = None,
        prompts: Prompts | None = None,
        tokenizer: TokenizerLike = None,
        window: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        model = model or default_model()
        self.config = config or ReadingConfig()
        self.limits = limits or Limits()
        self.reader = resolve_reader(
            model, config=self.config, prompts=prompts, tokenizer=tokenizer, base_url=base_url
        )
        self.name = self.reader.name
        if isinstance(model, str):
            self.name = model.partition(":")[2] or model
        self.counter = load_tokenizer(tokenizer or self.reader.tokenizer)
        self.store = store or InMemoryStore()
        self.chat = self.reader.model if isinstance(self.reader, ChatReader) else None
        self.upstream: Upstream | LocalModel | None = None
        if isinstance(self.chat, ChatEndpoint):
            self.upstream = Upstream(self.chat)
        elif self.chat is not None:
            self.upstream = LocalModel(self.chat, self.name)
        self.stopping = asyncio.Event()
        self.turns = asyncio.Semaphore(self.limits.readings)
        self._window = window
        options: dict[str, Any] = {"config": self.config, "tokenizer": tokenizer}
        self._answering = create_memagent(self.reader, **options)
        self._remembering = create_memagent(_Remembering(self.reader), **options)

    @property
    def understands(self) -> bool:
        """Whether the reader is a model, rather than the built-in one that only quotes."""
        return self.chat is not None

    async def check(self) -> None:
        """Check what can be checked before the first request.

        Raises:
            ConfigurationError: The budgets do not fit the model.
            ModelError: Its server is up, and has no such model.
        """
        await self.window()
        check_window(self.reader, self.config, question_tokens=0)

    async def window(self) -> int | None:
        """Tokens of the model's context, None where it has none or nobody knows."""
        if self._window is None and isinstance(self.reader, ChatReader):
            await self.reader.prepare()
        return self._window or self.reader.window_tokens

    def sessions(self, tenant: str | None) -> Sessions:
        """The memories of a tenant."""
        return Sessions(self.store, tenant)

    async def read(
        self,
        question: str,
        document: str,
        sessions: Sessions,
        *,
        name: str | None = None,
        memory: str | None = None,
        answering: bool = True,
    ) -> AsyncGenerator[Progress | dict[str, Any], None]:
        """Read, and answer from what is remembered then; the graph's output comes last.

        Args:
            question: what to read for.
            document: the text to read; if empty, the answer comes from `memory`.
            sessions: whose memories.
            name: the named memory that is read on into.
            memory: a memory's id or name.
            answering: False leaves the answer out.
        """
        run = Run(store=self.store, bank=sessions.bank)
        wanted: dict[str, Any] = {"question": question}
        if document:
            run.document = TextSource(document, "conversation")
            wanted["memory_name"] = name
        else:
            wanted["memory"] = memory
        agent = self._answering if answering else self._remembering
        at, output = None, {}
        parts = cast(
            "AsyncGenerator[Any]",
            agent.astream(
                wanted,
                context=run,
                stream_mode=["custom", "values"],
                output_keys=agent.output_channels,
            ),
        )
        async with self.turns, aclosing(parts):
            async for mode, part in parts:
                if mode == "values":
                    output = part
                    if at is not None:
                        yield Progress(at["chunk"], at["chunks"], part["memory"])
                        at = None
                elif part["event"] == "chunk":
                    if part["added"] or part["removed"]:
                        at = part  # the memory itself comes with the next values
                    else:
                        yield Progress(part["chunk"], part["chunks"], None)
        yield output

    async def aclose(self) -> None:
        """Close the connections of this event loop to the model's server."""
        if self.upstream is not None:
            await self.upstream.aclose()
        if isinstance(self.chat, ChatEndpoint):
            await self.chat.aclose()


class _Remembering(Reader):
    """Reads as another reader does, and says nothing: what is asked goes to a model with tools."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.name = reader.name
        self.fingerprint = reader.fingerprint
        self.tokenizer = reader.tokenizer
        self.deterministic = getattr(reader, "deterministic", True)

    @property
    def window_tokens(self) -> int | None:  # type: ignore[override]
        return self._reader.window_tokens

    async def prepare(self) -> None:
        prepare = getattr(self._reader, "prepare", None)
        if prepare is not None:
            await prepare()

    async def update(
        self,
        question: str,
        memory: str,
        chunk: Chunk,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Update:
        return await self._reader.update(question, memory, chunk, evidence=evidence, config=config)

    async def respond(
        self,
        question: str,
        memory: str,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Answer:
        return Answer("remembered", "remembered")
