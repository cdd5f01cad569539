"""The indexes of the documents that an agent read last."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.sync import to_thread
from memagent_graph.text.index import Index, open_index

if TYPE_CHECKING:
    from memagent_graph.text.source import Source

_KEPT = 4
"""Documents."""


class Indexes:
    """Opens each once, for all that look something up in a document."""

    def __init__(self) -> None:
        self._known: dict[str, Index] = {}
        self._lock = threading.Lock()

    async def of(self, source: Source, seconds: float | None = None) -> Index:
        """The index of a document.

        Args:
            source: the document.
            seconds: that it may take to open it; None for no limit.

        Raises:
            LateError: It took longer.
        """
        known = self._known.get(source.digest)
        if known is not None:
            return known
        return await to_thread(partial(self._open, source), seconds)

    def _open(self, source: Source) -> Index:
        with self._lock:  # the second finds what the first has made
            known = self._known.get(source.digest)
            if known is None:
                known = self._known[source.digest] = open_index(source)
                while len(self._known) > _KEPT:
                    del self._known[next(iter(self._known))]
            return known
