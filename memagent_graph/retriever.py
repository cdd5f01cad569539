"""A retriever that reads the corpus instead of searching an index of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - a field's type
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.language_models import BaseChatModel  # noqa: TC002 - a field's type
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import get_config_list
from langgraph.store.base import BaseStore  # noqa: TC002 - a field's type
from langgraph.store.memory import InMemoryStore
from pydantic import ConfigDict, Field, PositiveInt, PrivateAttr, model_validator

from memagent_graph.by_source import documents_by_source
from memagent_graph.config import ReadingConfig
from memagent_graph.corpus import CorpusReading, is_read_once, open_parts
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.build import create_memagent
from memagent_graph.graph.compiled import ReadingGraph  # noqa: TC001 - a field's type
from memagent_graph.memory.records import NAMESPACE
from memagent_graph.prompts import Prompts  # noqa: TC001 - a field's type
from memagent_graph.readers.base import Reader, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        BaseCallbackManager,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.documents import Document
    from langchain_core.runnables import RunnableConfig


class MemAgentRetriever(BaseRetriever):
    """Reads a corpus for each query, and returns the passages behind its memory, by source.

    A long corpus is read in several segments at once, whose memories are merged. Memories are kept
    in the store, so the same corpus is not read twice for the same query. `batch` and `abatch` read
    it once for all their queries.

    Attributes:
        corpus: documents (a `Path` is a file or a folder, a `str` is text), or another retriever,
            whose results for the query are then read.
        model: model that reads, as for `create_memagent`.
        k: most documents to return; `invoke(query, k=2)` is for one call.
        config: budgets and switches of the reading.
        store: store for memories; by default they stay in this process.
        namespace: labels of the memories in the store.
        prompts: prompts for a chat model; the library's own by default.
        tokenizer: counts tokens and cuts chunks, as for `create_memagent`.
        verify: decides which statements are supported, as for `create_memagent`.
        response_format: form of the answers, as for `create_memagent`; the metadata has them as
            `structured_response`.
        segments: most parts of the corpus to read at once; the config's by default, or 16 if it
            sets none. A reader that cannot merge reads it in one.

    Each document returned holds in `page_content` the passages of one source that statements of
    the memory came from. Sources that the answer cites come first, those with most citations
    before the others. Those of the first three that are passages already, of at most 2,000 code
    points, are returned whole.

    Metadata: `source`; `page` of the best statement, None in a source without pages; `start` and
    `end` (code points in that source, from the first statement to the last); `score`, between 0
    and 1: above 0.5 if the answer cites the source (1, 0.75, 0.67, ... by rank), otherwise half of
    the share of the memory that came from it; `lines`; `evidence` (each statement with its own
    span and page); `answer` (to the query, from the whole memory) and `coverage`. A reader that
    does not know where its memory came from gives one document with the whole memory and all
    sources.

    Raises:
        ValueError: An argument is not known, or cannot be used.
        MemAgentError: The corpus cannot be read, or the model fails.

    Examples:
        >>> from memagent_graph import MemAgentRetriever
        >>> lease, people = "Ann Kestrel signed the lease.", "Ann Kestrel lives in Husum."
        >>> retriever = MemAgentRetriever(corpus=[lease, people], model="extractive")
        >>> documents = retriever.invoke("Where does the person live who signed the lease?")
        >>> [document.page_content for document in documents]
        ['Ann Kestrel signed the lease.', 'Ann Kestrel lives in Husum.']
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    corpus: Any
    model: str | BaseChatModel | Reader | None = None
    k: int = Field(default=4, ge=1)
    config: ReadingConfig = Field(default_factory=ReadingConfig)
    store: BaseStore | None = Field(default_factory=InMemoryStore)
    namespace: Sequence[str] = NAMESPACE
    prompts: Prompts | None = None
    tokenizer: Any = None
    verify: Any = None
    response_format: Any = None
    segments: PositiveInt | Literal["auto", "chunks"] | None = None

    _agent: ReadingGraph = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _check_arguments(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        unknown = ", ".join(repr(name) for name in given if name not in cls.model_fields)
        if unknown:  # pydantic's own message would not list the known ones
            known = ", ".join(sorted(cls.model_fields))
            message = f"There is no argument {unknown}. A retriever takes {known}."
            raise ConfigurationError(message)
        return given

    def model_post_init(self, context: object, /) -> None:
        """Make the graph that reads."""
        super().model_post_init(context)
        if is_read_once(self.corpus):
            self.corpus = open_parts(self.corpus)
        reader = resolve_reader(
            self.model,
            config=self.config,
            prompts=self.prompts,
            tokenizer=self.tokenizer,
            verify=self.verify,
            response_format=self.response_format,
        )
        chosen = self.config.segments if "segments" in self.config.model_fields_set else _SEGMENTS
        segments = (self.segments or chosen) if merges(reader) else 1
        self._agent = create_memagent(
            reader,
            config=self.config.model_copy(update={"segments": segments}),
            store=self.store,
            namespace=self.namespace,
            tokenizer=self.tokenizer,
        )

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Retrieve for several queries, for which the corpus is read once; see `abatch`."""
        if isinstance(self.corpus, BaseRetriever):
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return wait_for(self.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs))

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Retrieve for several queries, for which the corpus is read once.

        A query that fails does not fail the others: with `return_exceptions` its place has the
        error. Callbacks see the model's calls below the first query's run. A corpus that is another
        retriever is asked for each query.

        Args:
            inputs: the queries.
            config: one configuration for all queries, or one for each; `max_concurrency` of the
                first holds for the reading.
            return_exceptions: return errors instead of raising them.
            kwargs: further arguments of the base class, and `k`.
        """
        if not inputs or isinstance(self.corpus, BaseRetriever):
            return await super().abatch(
                inputs, config, return_exceptions=return_exceptions, **kwargs
            )
        limit = get_config_list(config, len(inputs))[0].get("max_concurrency")
        reading = CorpusReading(self._agent, self.corpus, inputs, limit)
        try:
            return await super().abatch(
                inputs, config, return_exceptions=return_exceptions, reading=reading, **kwargs
            )
        finally:
            await reading.close()

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        reading: CorpusReading | None = None,
        k: int | None = None,
    ) -> list[Document]:
        callbacks, corpus = run_manager.get_child(), self.corpus
        if isinstance(corpus, BaseRetriever):
            corpus = corpus.invoke(query, {"callbacks": callbacks})
        reading = reading or CorpusReading(self._agent, corpus, [query])
        return wait_for(self._found(reading, query, callbacks, k))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        reading: CorpusReading | None = None,
        k: int | None = None,
    ) -> list[Document]:
        callbacks, corpus = run_manager.get_child(), self.corpus
        if isinstance(corpus, BaseRetriever):
            corpus = await corpus.ainvoke(query, {"callbacks": callbacks})
        reading = reading or CorpusReading(self._agent, corpus, [query])
        return await self._found(reading, query, callbacks, k)

    async def _found(
        self,
        reading: CorpusReading,
        query: str,
        callbacks: BaseCallbackManager,
        k: int | None,
    ) -> list[Document]:
        most = self.k if k is None else k
        if most < 1:
            message = f"k is the most documents to return, at least 1, not {k}."
            raise ConfigurationError(message)
        corpus, outcome = await reading.outcome(query, callbacks)
        if isinstance(outcome, Exception):
            raise outcome
        return [] if outcome is None else documents_by_source(corpus, outcome, most)


_SEGMENTS = 16
"""Parts of a corpus that are read at once, where nobody says how many."""
