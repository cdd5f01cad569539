"""A retriever that reads the corpus instead of searching an index of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel  # noqa: TC002 - a field's type
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import get_config_list
from langgraph.store.base import BaseStore  # noqa: TC002 - a field's type
from langgraph.store.memory import InMemoryStore
from pydantic import ConfigDict, Field, PrivateAttr

from memagent_graph.batch import Outcome, read_together
from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.graph.build import ReadingGraph, create_memagent
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.prompts import Prompts  # noqa: TC001 - a field's type
from memagent_graph.readers.base import Reader, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.sync import to_sync, to_thread
from memagent_graph.text.files import open_source
from memagent_graph.text.source import JoinedSource, flat_parts, metadata_of, skips_of, warnings_of

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackManager
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.state import Place
    from memagent_graph.text.source import Source


Filter: TypeAlias = "Mapping[str, Any] | Callable[[Mapping[str, Any]], Any]"
"""Values that the metadata of a source must have, or a function of the metadata."""


def documents_of(
    corpus: JoinedSource,
    output: Mapping[str, Any],
    most: int,
    by: Literal["source", "passage"] = "source",
) -> list[Document]:
    """Return a document for each source, or passage, behind the memory and the answer, best first.

    Those that the answer cites come before the others: those with most citations first, then
    in the answer's order. The others follow by how much of the memory came from them.
    A memory without evidence, of a reader that knows no places, is one document with all sources;
    none if the answer was not found. Overlapping passages are one.
    """
    named = ("answer", "found", "how", "coverage", "structured_response")
    about = {name: output[name] for name in named if name in output}
    about["skipped"] = [str(file) for file in corpus.skips]
    noted = output["evidence"]
    told = [item for item in output["citations"] if item not in noted]  # by passages of the answer
    found = _place_statements(corpus, [*noted, *told])
    if not found:
        memory = "" if output["found"] is False else output["memory"]
        names = ", ".join(part.name for part in corpus.parts)
        span = 0, sum(part.length for part in corpus.parts)
        whole = _describe(names, None, span, 0.5, [], corpus)
        return [Document(memory, metadata={**whole, **about})] if memory.strip() else []
    cited = _place_statements(corpus, output["citations"])
    sources: dict[int, list[_PlacedStatement]] = {}
    for statement in found:
        sources.setdefault(id(statement.part), []).append(statement)
    groups = [*sources.values()]
    if by == "passage":
        groups = [passage for items in groups for passage in _group_passages(items)]
    ranked = []
    for items in groups:
        span = _span(items) if by == "passage" else (0, items[0].part.length)
        citations = [place for place, item in enumerate(cited) if item.is_of(items[0].part, span)]
        first, share = min(citations, default=len(cited)), _size(items) / _size(found)
        ranked.append(((-len(citations), first, -share), items))
    ranked.sort(key=itemgetter(0))
    documents = []
    for number, ((cites, first, share), items) in enumerate(ranked[:most]):
        part, span, text = items[0].part, _span(items), _read_passages(items)
        if by == "source" and number < _WHOLE_SOURCES and part.length <= _SHORT:
            span, text = (0, part.length), part.read(0, part.length)
        page, given = (cited[first] if cites else items[0]).place["page"], metadata_of(part)
        page = given.get("page") if page is None else page
        score = 0.5 + 0.5 / (number + 1) if cites else 0.5 * -share
        own = _describe(part.name, page, span, score, items, part)
        known = getattr(part, "id", None) if by == "source" else None
        documents.append(Document(text, metadata={**given, **own, **about}, id=known))
    return documents


def _describe(
    name: str,
    page: int | None,
    span: tuple[int, int],
    score: float,
    items: Sequence[_PlacedStatement],
    source: Source,
) -> dict[str, object]:
    return {
        "source": name,
        "page": page,
        "start": span[0],
        "end": span[1],
        "score": score,
        "lines": [item.place["line"] for item in items],
        "evidence": [item.place for item in items],
        "warnings": [*warnings_of(source)],
    }


class _PlacedStatement(NamedTuple):
    """A statement of the memory, with its place in the part of the corpus that it came from."""

    part: Source
    place: Place

    @property
    def span(self) -> tuple[int, int]:
        return self.place["start"], self.place["end"]

    def is_of(self, part: Source, span: tuple[int, int]) -> bool:
        start, end = self.span
        return self.part is part and start < span[1] and end > span[0]


def _place_statements(corpus: JoinedSource, items: Sequence[Place]) -> list[_PlacedStatement]:
    """Statements in their parts; one that stands in the name of a part is not a statement."""
    placed = []
    for item in items:
        part, begin = next(corpus.parts_between(item["start"], corpus.length))
        start, end = item["start"] - begin, min(item["end"] - begin, part.length)
        if start >= 0:
            place: Place = {**item, "source": part.name, "start": start, "end": end}
            placed.append(_PlacedStatement(part, place))
    return placed


def _group_passages(items: Sequence[_PlacedStatement]) -> list[list[_PlacedStatement]]:
    """Group the statements of a source whose places overlap."""
    groups: list[list[_PlacedStatement]] = []
    end = -1
    for item in sorted(items, key=lambda item: item.span):
        if item.span[0] >= end:
            groups.append([])
        groups[-1].append(item)
        end = max(end, item.span[1])
    return groups


def _span(items: Sequence[_PlacedStatement]) -> tuple[int, int]:
    return min(item.span[0] for item in items), max(item.span[1] for item in items)


def _size(items: Sequence[_PlacedStatement]) -> int:
    return sum(len(item.place["text"]) for item in items)


def _read_passages(items: Sequence[_PlacedStatement]) -> str:
    """Return the source's passages that support the statements, each once, on a line of its own."""
    spans = map(_span, _group_passages(items))
    found = (items[0].part.read(start, end - start) for start, end in spans)
    return "\n".join(" ".join(text.split()) for text in found)


_SHORT = 2000
"""Code points of a source that is a passage already."""
_WHOLE_SOURCES = 3
"""So many passages are returned whole: what a statement leaves unsaid often stands next to it."""


class CorpusReading:
    """One pass over a corpus for all `queries`, begun when the first of them is asked for.

    At most `most` calls are under way; `wanted` chooses the sources that are read, as in `select`.
    """

    def __init__(
        self,
        agent: ReadingGraph,
        corpus: Any,
        queries: Sequence[str],
        most: int | None = None,
        wanted: Filter | None = None,
    ) -> None:
        self._agent, self._corpus, self._wanted = agent, corpus, wanted
        self._limit: RunnableConfig = {} if most is None else {"max_concurrency": most}
        self._queries = list(dict.fromkeys(queries))
        self._reading: asyncio.Future[tuple[JoinedSource, dict[str, Outcome]]] | None = None

    async def outcome(
        self, query: str, callbacks: BaseCallbackManager
    ) -> tuple[JoinedSource, Outcome | None]:
        """The corpus, and what became of a query; None where there is nothing to read.

        The callbacks see the reading, if this query is the first to be asked for.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read(callbacks))
        alone = len(self._queries) == 1  # then who stops waiting stops the reading
        corpus, outcomes = await (self._reading if alone else asyncio.shield(self._reading))
        return corpus, outcomes.get(query)

    async def close(self) -> None:
        """End the pass, if it still runs."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(
        self, callbacks: BaseCallbackManager
    ) -> tuple[JoinedSource, dict[str, Outcome]]:
        corpus = await to_thread(partial(_open_corpus, self._corpus, self._wanted))
        if not corpus.parts:
            return corpus, {}
        config: RunnableConfig = {**self._limit, "callbacks": callbacks}
        outcomes = await read_together(self._agent, self._queries, corpus, config)
        return corpus, dict(zip(self._queries, outcomes, strict=True))


def _open_corpus(corpus: Any, wanted: Filter | None = None) -> JoinedSource:
    """Join the single sources of a corpus whose metadata match; blank documents are left out."""
    opened = [*_open_all(corpus)]
    parts = [part for source in opened for part in flat_parts(source) if _is_wanted(part, wanted)]
    skipped = [file for source in opened for file in skips_of(source)]
    return JoinedSource(parts, "corpus", skipped=skipped)


def _is_wanted(part: Source, wanted: Filter | None) -> bool:
    found = {**metadata_of(part), "source": part.name}
    if callable(wanted):
        return bool(wanted(found))
    return all(found.get(name) == value for name, value in (wanted or {}).items())


def _open_all(corpus: Any) -> Iterator[Source]:
    if isinstance(corpus, JoinedSource):
        yield corpus
    elif isinstance(corpus, list | tuple | Iterator) and not hasattr(corpus, "read"):
        for item in corpus:
            yield from _open_all(item)
    elif not isinstance(corpus, Document) or corpus.page_content.strip():
        yield open_source(corpus)


def _is_read_once(corpus: Any) -> bool:
    """Whether a corpus is gone when it was read: a stream, or a generator."""
    is_stream = hasattr(corpus, "read") and not hasattr(corpus, "locate")
    return is_stream or isinstance(corpus, Iterator)


class MemAgentRetriever(BaseRetriever):
    """Reads a corpus for each query, and returns the passages behind its memory, by source.

    A long corpus is read in several segments at once, whose memories are merged. Memories are kept
    in the store, so the same corpus is not read twice for the same query. `batch` and `abatch` read
    it once for all their queries.

    Attributes:
        corpus: documents (a `Path` is a file or a folder, a `str` is text), `corpus(...)` of these,
            or another retriever, whose results for the query are then read.
        model: model that reads, as for `create_memagent`.
        k: most documents to return; `invoke(query, k=2)` is for one call.
        by: what a document returned is: a "source", or a "passage" of one.
        config: budgets and switches of the reading. `segments` is 16 if it sets none, and 1 for a
            reader that cannot merge.
        store: store for memories; by default they stay in this process.
        namespace: labels of the memories in the store.
        prompts: prompts for a chat model; the library's own by default.
        tokenizer: counts tokens and cuts chunks, as for `create_memagent`.
        verify: decides which statements are supported, as for `create_memagent`.
        response_format: form of the answers, as for `create_memagent`; the metadata has them as
            `structured_response`.

    Each document returned has the passages of one source that statements of the memory came from.
    Sources that the answer cites come first, those with most citations before the others. Those of
    the first three that have at most 2,000 code points are returned whole. With `by="passage"`,
    each document is one passage.

    `invoke(query, filter={"year": 2023})` reads only the sources whose metadata have these values;
    a filter is also a function of the metadata, in which `source` is the name. Metadata are those
    of LangChain's documents, and of `corpus(..., metadata=...)`.

    Metadata: `source`; `page` of the best statement, None in a source without pages; `start` and
    `end` (code points in that source, from the first statement to the last); `score`, between 0
    and 1: above 0.5 if the answer cites the source (1, 0.75, 0.67, ... by rank), otherwise half of
    the share of the memory that came from it; `lines`; `evidence` (each statement with its own
    span and page); `answer` (to the query, from the whole memory) and `coverage`; `warnings` about
    the source's text, and `skipped`, a line for each file of the corpus that was not read. A
    reader that knows no places gives one document with the whole memory and all sources.

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

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    corpus: Any
    model: str | BaseChatModel | Reader | None = None
    k: int = Field(default=4, ge=1)
    by: Literal["source", "passage"] = "source"
    config: ReadingConfig = Field(default_factory=ReadingConfig)
    store: BaseStore | None = Field(default_factory=InMemoryStore)
    namespace: Sequence[str] = NAMESPACE
    prompts: Prompts | None = None
    tokenizer: Any = None
    verify: Any = None
    response_format: Any = None

    _agent: ReadingGraph = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Make the graph that reads."""
        super().model_post_init(context)
        if _is_read_once(self.corpus):
            self.corpus = _open_corpus(self.corpus)
        config, counter = self.config.or_auto(), self.tokenizer
        form: Any = {"verify": self.verify, "response_format": self.response_format}
        reader = resolve_reader(
            self.model, config=self.config, prompts=self.prompts, tokenizer=counter, **form
        )
        if not merges(reader) or "segments" not in config.model_fields_set:
            segments = _SEGMENTS if merges(reader) else 1
            config = config.model_copy(update={"segments": segments})
        kept: Any = {"store": self.store, "namespace": self.namespace}
        self._agent = create_memagent(reader, config=config, tokenizer=counter, **kept)

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
            kwargs: further arguments of the base class, `k`, and `filter`.
        """
        if not inputs or isinstance(self.corpus, BaseRetriever):
            return await super().abatch(
                inputs, config, return_exceptions=return_exceptions, **kwargs
            )
        limit = get_config_list(config, len(inputs))[0].get("max_concurrency")
        reading = CorpusReading(self._agent, self.corpus, inputs, limit, kwargs.get("filter"))
        try:
            return await super().abatch(
                inputs, config, return_exceptions=return_exceptions, reading=reading, **kwargs
            )
        finally:
            await reading.close()

    batch = to_sync(abatch)  # type: ignore[arg-type]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: Any,
        reading: CorpusReading | None = None,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        corpus, callbacks = self.corpus, run_manager.get_child()
        if isinstance(corpus, BaseRetriever):
            corpus = await corpus.ainvoke(query, {"callbacks": callbacks})
        reading = reading or CorpusReading(self._agent, corpus, [query], wanted=filter)
        most = self.k if k is None else k
        if most < 1:
            message = f"k is the most documents to return, at least 1, not {k}."
            raise ConfigurationError(message)
        corpus, outcome = await reading.outcome(query, callbacks)
        if isinstance(outcome, Exception):
            raise outcome
        return [] if outcome is None else documents_of(corpus, outcome, most, self.by)

    _get_relevant_documents = to_sync(_aget_relevant_documents)  # type: ignore[arg-type]


_SEGMENTS = 16
"""Parts of a corpus that are read at once, where nobody says how many."""
