"""A retriever that reads the corpus instead of searching an index of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel  # noqa: TC002 - a field's type
from langchain_core.retrievers import BaseRetriever
from langgraph.store.base import BaseStore  # noqa: TC002 - a field's type
from langgraph.store.memory import InMemoryStore
from pydantic import ConfigDict, Field, PrivateAttr

from memagent_graph.config import ReadingConfig
from memagent_graph.graph.build import ReadingGraph, create_memagent
from memagent_graph.memory.records import NAMESPACE
from memagent_graph.readers.base import Evidence, Reader, merges
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.sync import to_thread, wait_for
from memagent_graph.text.opening import open_source
from memagent_graph.text.source import JoinedSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        BaseCallbackManager,
        CallbackManagerForRetrieverRun,
    )

    from memagent_graph.graph.state import Place
    from memagent_graph.text.opening import DocumentLike
    from memagent_graph.text.source import Source


class MemAgentRetriever(BaseRetriever):
    """Reads a corpus for each query, and returns what its memory holds, by source.

    A long corpus is read in several segments at once, whose memories are merged. A corpus that
    was read for the same query is not read again: memories are kept in the store.

    Args:
        corpus: documents, as the graph takes them (a `Path` is a file or a folder, a `str` is
            text), or another retriever, whose results for the query are then read.
        model: who reads, as for `create_memagent`.
        k: most documents to return.
        config: budgets and switches of the reading.
        store: where memories are kept; in this process only by default.
        namespace: labels under which they are kept there.
        segments: most parts of the corpus that are read at once, in the place of the config's; a
            reader that cannot merge reads it in one.

    Each document returned holds in `page_content` the statements of the memory that came from one
    source: the sources that the answer cites first, then those with most of them. Those of the
    first three that are passages already, of at most 2,000 code points, are returned whole.
    Metadata: `source`, `start` and `end` (code points in that source, from the first statement to
    the last), `lines`, `evidence` (each statement with its own span), `answer` (to the query, from
    the whole memory) and `coverage`. Readers that do not know where their memory came from, as
    chat models, give one document with the whole memory and all sources.

    Raises:
        MemAgentError: The corpus cannot be read, or the model fails.

    Example:
        ```python
        retriever = MemAgentRetriever(corpus=Path("contracts/"), model="openai:gpt-4o")
        retriever.invoke("Who may terminate the lease early?")
        ```
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    corpus: Any
    model: str | BaseChatModel | Reader | None = None
    k: int = Field(default=4, ge=1)
    config: ReadingConfig = Field(default_factory=ReadingConfig)
    store: BaseStore | None = Field(default_factory=InMemoryStore)
    namespace: Sequence[str] = NAMESPACE
    segments: int = Field(default=16, ge=1)

    _agent: ReadingGraph = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Make the graph that reads."""
        super().model_post_init(context)
        reader = resolve_reader(self.model, config=self.config)
        segments = self.segments if merges(reader) else 1
        self._agent = create_memagent(
            reader,
            config=self.config.model_copy(update={"segments": segments}),
            store=self.store,
            namespace=self.namespace,
        )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        corpus = self.corpus
        if isinstance(corpus, BaseRetriever):
            corpus = corpus.invoke(query, {"callbacks": run_manager.get_child()})
        return wait_for(self._read(query, corpus, run_manager.get_child()))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        corpus = self.corpus
        if isinstance(corpus, BaseRetriever):
            corpus = await corpus.ainvoke(query, {"callbacks": run_manager.get_child()})
        return await self._read(query, corpus, run_manager.get_child())

    async def _read(
        self, query: str, corpus: DocumentLike, callbacks: BaseCallbackManager
    ) -> list[Document]:
        parts = await to_thread(partial(_parts, corpus))
        if not parts:
            return []
        document = JoinedSource(parts, "corpus")
        output = await self._agent.ainvoke(
            {"question": query, "document": document}, {"callbacks": callbacks}
        )
        placed = [_placed(document, item) for item in output["evidence"]]
        kept = [item for item in placed if item.start >= 0]  # and not the name of the part
        about = {"answer": output["answer"], "coverage": output["coverage"]}
        if not kept:
            return _memory(output["memory"], parts, about)
        cited = {item["text"] for item in output["citations"]}
        return _by_source(kept, cited, about)[: self.k]


def _parts(corpus: Any) -> list[Source]:
    """All single sources of the corpus; documents without text are left out."""
    if isinstance(corpus, Iterable) and not isinstance(corpus, str | bytes):
        listed = [item for item in corpus if not _is_blank(item)]
        return [part for item in listed for part in _parts(open_source(item))] if listed else []
    source = open_source(corpus)
    if isinstance(source, JoinedSource):
        return [part for inner in source.parts for part in _parts(inner)]
    return [source]


def _is_blank(item: object) -> bool:
    return isinstance(item, Document) and not item.page_content.strip()


class _Placed(NamedTuple):
    """A statement with its span in the part of the corpus that it came from."""

    part: Source
    text: str
    line: int
    start: int
    end: int


def _placed(corpus: JoinedSource, item: Place) -> _Placed:
    part, begin = corpus.part_at(item["start"])
    return _Placed(part, item["text"], item["line"], item["start"] - begin, item["end"] - begin)


def _by_source(
    statements: Sequence[_Placed], cited: set[str], about: Mapping[str, object]
) -> list[Document]:
    """A document for each source: those that the answer cites first, then by how much they gave."""

    def rank(items: list[_Placed]) -> tuple[int, int]:
        texts = [item.text for item in items]
        return -sum(text in cited for text in texts), -sum(map(len, texts))

    groups: dict[int, list[_Placed]] = {}
    for statement in statements:
        groups.setdefault(id(statement.part), []).append(statement)
    ranked = sorted(groups.values(), key=rank)
    return [_document(items, about, number) for number, items in enumerate(ranked)]


def _document(items: list[_Placed], about: Mapping[str, object], number: int) -> Document:
    part = items[0].part
    whole = number < _WHOLE_SOURCES and part.length <= _SHORT
    start = 0 if whole else min(item.start for item in items)
    end = part.length if whole else max(item.end for item in items)
    evidence = [Evidence(item.text, part.name, *item[2:]) for item in items]
    return Document(
        page_content=part.read(start, end) if whole else "\n".join(item.text for item in items),
        metadata={
            "source": part.name,
            "start": start,
            "end": end,
            "lines": [item.line for item in items],
            "evidence": [asdict(item) for item in evidence],
            **about,
        },
    )


_SHORT = 2000
"""Code points of a source that is a passage already."""
_WHOLE_SOURCES = 3
"""So many passages are returned whole: what a statement leaves unsaid often stands next to it."""


def _memory(memory: str, parts: list[Source], about: Mapping[str, object]) -> list[Document]:
    """The whole memory, of a reader that does not know where it came from."""
    if not memory.strip():
        return []
    length = sum(part.length for part in parts)
    names = [part.name for part in parts]
    span = {"source": ", ".join(names), "start": 0, "end": length, "lines": [], "evidence": []}
    return [Document(page_content=memory, metadata={**span, **about})]
