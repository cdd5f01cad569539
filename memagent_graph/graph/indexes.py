"""The indexes of the documents that an agent has read last."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.sync import to_thread
from memagent_graph.text.index import Index, open_index

if TYPE_CHECKING:
    from memagent_graph.text.source import Source

_KEPT = 4
"""Number of documents whose indexes are kept."""


class Indexes:
    """Opens indexes, each only once."""

    def __init__(self) -> None:
        self._known: dict[str, Index] = {}
        self._lock = threading.Lock()

    async def of(self, source: Source, seconds: float | None = None) -> Index:
        """Return the index of a document.

        Args:
            source: the document.
            seconds: time limit for opening it, in seconds; None for no limit.

        Raises:
            LateError: It took longer.
        """
        known = self._known.get(source.digest)
        if known is not None:
            return known
        return await to_thread(partial(self._open, source), seconds)

    def _open(self, source: Source) -> Index:
        with self._lock:  # a second caller finds the first one's index
            known = self._known.get(source.digest)
            if known is None:
                known = self._known[source.digest] = open_index(source)
                while len(self._known) > _KEPT:
                    del self._known[next(iter(self._known))]
            return known
