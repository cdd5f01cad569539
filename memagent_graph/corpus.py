"""A corpus as one document with many parts, and one pass over it for several queries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

from memagent_graph.sync import to_thread
from memagent_graph.text.opening import open_source
from memagent_graph.text.source import JoinedSource
from memagent_graph.together import Outcome, read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.callbacks import BaseCallbackManager
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.compiled import ReadingGraph
    from memagent_graph.text.source import Source


class CorpusReading:
    """One pass over a corpus, begun when the first of its queries is asked for.

    Args:
        agent: the graph that reads.
        corpus: one or more documents, as the graph takes them.
        queries: all queries for which the corpus is read.
        most: most calls at once; None for no limit.
    """

    def __init__(
        self, agent: ReadingGraph, corpus: Any, queries: Sequence[str], most: int | None = None
    ) -> None:
        self._agent, self._corpus, self._most = agent, corpus, most
        self._queries = list(dict.fromkeys(queries))
        self._reading: asyncio.Future[tuple[JoinedSource, dict[str, Outcome]]] | None = None

    async def outcome(
        self, query: str, callbacks: BaseCallbackManager
    ) -> tuple[JoinedSource, Outcome | None]:
        """The corpus, and what became of a query; None where there is nothing to read.

        Args:
            query: one of the queries.
            callbacks: they see the reading, if this query is the first to be asked for.
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
        corpus = JoinedSource(await to_thread(partial(open_parts, self._corpus)), "corpus")
        if not corpus.parts:
            return corpus, {}
        config: RunnableConfig = {"callbacks": callbacks}
        if self._most is not None:
            config["max_concurrency"] = self._most
        outcomes = await read_together(self._agent, self._queries, corpus, config)
        return corpus, dict(zip(self._queries, outcomes, strict=True))


def open_parts(corpus: Any) -> list[Source]:
    """All single sources of a corpus; documents without text are left out."""
    if isinstance(corpus, list | tuple | Iterator) and not hasattr(corpus, "read"):
        listed = [item for item in corpus if not _is_blank(item)]
        return [part for item in listed for part in open_parts(item)]
    source = corpus if isinstance(corpus, JoinedSource) else open_source(corpus)
    if isinstance(source, JoinedSource):
        return [part for inner in source.parts for part in open_parts(inner)]
    return [source]


def is_read_once(corpus: Any) -> bool:
    """Whether a corpus is gone when it was read: a stream, or a generator."""
    return isinstance(corpus, Iterator) or (
        hasattr(corpus, "read") and not hasattr(corpus, "locate")
    )


def _is_blank(item: object) -> bool:
    return isinstance(item, Document) and not item.page_content.strip()
