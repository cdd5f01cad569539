"""Read with the model, the store and the budgets of a server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from langgraph.store.memory import InMemoryStore

from memagent_graph.config import ReadingConfig
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.reading import check_window
from memagent_graph.graph.state import Run
from memagent_graph.memory.items import NAMESPACE, check_namespace
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.resolve import default_model, resolve_reader
from memagent_graph.text.tokens import load_tokenizer
from memagent_openai_server.access import Limits
from memagent_openai_server.completion import Progress, Said
from memagent_openai_server.local import LocalModel
from memagent_openai_server.memories import Memories
from memagent_openai_server.readers import ServedReader
from memagent_openai_server.upstream import Upstream
from memagent_openai_server.users import UserMemories

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from langchain_core.language_models import BaseChatModel
    from langgraph.store.base import BaseStore

    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import TokenizerLike
    from memagent_openai_server.speech import Speech


class Service:
    """The model, store and budgets that all requests share.

    Args:
        model: the model, as for `create_memagent`.
        name: the model's name for clients; by default, its name on its server.
        base_url: URL of the model's server, for an `openai:` model.
        store: the store of the memories; None keeps them in this process.
        namespace: labels of the memories in the store, below the key's own.
        config: budgets of a reading.
        prompts: the prompts of a chat model.
        tokenizer: counts tokens and cuts chunks.
        window: the model's context, in tokens; None asks its server.
        limits: limits on requests.
        remember: whether to remember what users say in chats.
    """

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None = None,
        *,
        name: str | None = None,
        base_url: str | None = None,
        store: BaseStore | None = None,
        namespace: Sequence[str] = NAMESPACE,
        config: ReadingConfig | None = None,
        prompts: Prompts | None = None,
        tokenizer: TokenizerLike = None,
        window: int | None = None,
        limits: Limits | None = None,
        remember: bool = False,
    ) -> None:
        model = model or default_model()
        tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        self.config = config or ReadingConfig()
        self.limits = limits or Limits()
        self.reader = resolve_reader(
            model, config=self.config, prompts=prompts, tokenizer=tokenizer, base_url=base_url
        )
        known = self.reader.identity
        own = model.partition(":")[2] or model if isinstance(model, str) else known.name
        self.name = name or own
        self.counter = load_tokenizer(tokenizer or known.tokenizer)
        self.store = store or InMemoryStore()
        self.namespace = check_namespace(namespace)
        self._memories: dict[str | None, Memories] = {}
        self.chat = self.reader.model if isinstance(self.reader, ChatReader) else None
        self.upstream: Upstream | LocalModel | None = None
        if isinstance(self.chat, ChatEndpoint):
            self.upstream = Upstream(self.chat, self.name)
        elif self.chat is not None:
            self.upstream = LocalModel(self.chat, self.name)
        self.users: UserMemories | None = None
        if remember:
            self.users = UserMemories(self.reader, self.counter, self.config, tokenizer)
        self.stopping = asyncio.Event()
        self._window = window
        self._reader = ServedReader(self.reader, self.config, self.limits.readings)
        self._agent = create_memagent(self._reader, config=self.config, tokenizer=tokenizer)

    @property
    def understands(self) -> bool:
        """Whether the reader is a model, rather than the built-in one that only quotes."""
        return self.chat is not None

    async def check(self) -> None:
        """Check what can be checked before the first request.

        Raises:
            ConfigurationError: The budgets do not fit the model.
            ModelError: The model's server is up, and has no such model.
        """
        await self.window()
        check_window(self.reader.identity, self.config, question_tokens=0)

    async def window(self) -> int | None:
        """Return the model's context in tokens, or None if it has none or is unknown."""
        if self._window is None and isinstance(self.reader, ChatReader):
            self._window = (await self.reader.prepare()).window_tokens
        return self._window or self.reader.identity.window_tokens

    def memories(self, tenant: str | None) -> Memories:
        """Return the memories of a key; None if the server has no keys."""
        found = self._memories.get(tenant)
        if found is None:
            found = Memories(self.store, tenant, self.namespace, self.config.ttl)
            self._memories[tenant] = found
        return found

    async def read(
        self,
        question: str,
        document: Source | None,
        memories: Memories,
        *,
        name: str | None = None,
        memory: str | None = None,
        speech: Speech | None = None,
        pictured: Source | None = None,
    ) -> AsyncGenerator[Progress | Said | dict[str, Any], None]:
        """Read, and answer from the memory; the graph's output comes last.

        Args:
            question: the question.
            document: what to read; if None, the answer comes from `memory`.
            memories: the memories of the key.
            name: name of the memory that the reading continues.
            memory: a memory's id or name.
            speech: the answer; None for a reading without an answer.
            pictured: the pictures that the answer may see, of what was read earlier as well.
        """
        run = Run(store=self.store, namespace=memories.bank.namespace, pictured=pictured)
        if speech is not None and speech.streams:
            speech.write = lambda text: run.write(Said(text)) if run.write else None
        wanted: dict[str, Any] = {"question": question}
        if document is not None:
            run.document = document
            wanted["memory_name"] = name
        else:
            wanted["version"] = memory
        agent, at, output = self._agent, None, {}
        parts = cast(
            "AsyncGenerator[Any]",
            agent.astream(
                wanted,
                self._reader.config(speech),
                context=run,
                stream_mode=["custom", "values"],
                output_keys=agent.output_channels,
            ),
        )
        async with aclosing(parts):
            async for mode, part in parts:
                if mode == "values":
                    output = part
                    if at is not None:
                        yield Progress(at["chunk"], at["chunks"], part.get("memory", ""))
                        at = None
                elif isinstance(part, Said):
                    yield part
                elif part["event"] == "chunk":
                    if part["added"] or part["removed"]:
                        at = part  # the memory itself comes with the next values
                    else:
                        yield Progress(part["chunk"], part["chunks"], None)
        yield output

    async def respond(self, question: str, speech: Speech) -> str:
        """Answer a question without a text to read and without a memory."""
        config = self._reader.config(speech)
        return (await self._reader.respond(question, Memory(), config=config)).final

    async def aclose(self) -> None:
        """End background work, and close this loop's connections to the model's server."""
        if self.users is not None:
            await self.users.aclose()
        if self.upstream is not None:
            await self.upstream.aclose()
        if isinstance(self.chat, ChatEndpoint):
            await self.chat.aclose()
