"""Record what a reading adds to the store in the tenant's ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_openai_server.memories.sessions import unless_away

if TYPE_CHECKING:
    from types import TracebackType

    from memagent_graph.graph.state import Run
    from memagent_openai_server.memories.sessions import Sessions

_RECORD = 1000
"""Bytes of a version besides its texts."""
_COPIES = 2
"""Copies of a memory's words in a version: in the text, and as evidence."""


class Tally:
    """Records what a reading adds, after the first chunk and at the end, even after an error.

    Args:
        sessions: the tenant's sessions.
        run: the graph's run.
        question: the question of the reading.
        name: name of the memory; None for a reading without one.
        memory: name or id of the memory to answer from, if nothing is read.

    Attributes:
        memory: current text of the memory.
    """

    def __init__(
        self,
        sessions: Sessions,
        run: Run,
        question: str,
        name: str | None,
        memory: str | None,
    ) -> None:
        self.memory = ""
        self._sessions = sessions
        self._run = run
        self._question = question
        self._name = name
        self._asked = memory
        self._bytes = 0
        self._begun = False

    async def __aenter__(self) -> None:
        """Begin."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record the rest."""
        await self._write()

    async def read(self) -> None:
        """Count a chunk."""
        texts = self._question, *[self.memory] * _COPIES
        self._bytes += sum(len(text.encode()) for text in texts) + _RECORD
        if not self._begun:  # from now on something is stored, even if this process ends
            self._begun = True
            await self._write()

    async def _write(self) -> None:
        read, self._bytes = self._bytes, 0
        chain = self._run.chains.get("")
        with unless_away("What was read may be kept for longer than the limits say"):
            if self._name is not None:
                await self._sessions.used(self._name, read=read)
            elif self._asked is not None:
                await self._sessions.used_version(self._asked)
            elif chain is not None:
                await self._sessions.used(chain.memory, read=read)
