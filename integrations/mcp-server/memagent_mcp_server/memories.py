"""Tools that show and change stored memories, and memories as resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.types import Resource
from pydantic import BaseModel, Field

from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.text.tokens import EstimatingTokenizer
from memagent_mcp_server.reading import Reference  # noqa: TC001 - the SDK reads annotations

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank

TEMPLATE = "memagent://memories/{name}"

Name = Annotated[str, Field(description="The memory's name, as list_memories gives it.")]


class Memory(BaseModel):
    """A memory in a list.

    Attributes:
        name: its name.
        question: the question of the reading.
        source: name of the document.
        coverage: share of the source that was read, 0 to 1.
        tokens: its length in tokens.
        edited: whether a person wrote its newest version.
    """

    name: str
    question: str
    source: str
    coverage: float
    tokens: int
    edited: bool


def check_length(text: str, most: int) -> None:
    """Refuse a text that is no memory, or too long for one.

    Raises:
        ToolError: It is empty, or has more than `most` tokens.
    """
    tokens = EstimatingTokenizer().count(text)
    if not text.strip() or tokens > most:
        message = f"A memory needs 1 to {most} tokens, but this text has {tokens}."
        raise ToolError(message)


class MemoryTools:
    """Lists, shows, edits and forgets memories.

    Args:
        bank: the memories.
        most_tokens: longest text of an edit, in tokens.
    """

    def __init__(self, bank: MemoryBank, most_tokens: int) -> None:
        self._bank = bank
        self._most = most_tokens

    async def list_memories(self) -> list[Memory]:
        """List memories."""
        return [
            Memory(
                name=name,
                question=version.question,
                source=version.document.name,
                coverage=version.document.share,
                tokens=version.tokens,
                edited=version.edited,
            )
            for name, version in await self._bank.alist()
        ]

    async def show_memory(self, memory: Reference) -> str:
        """Show the text of a memory."""
        return (await self._bank.aget(memory)).text

    async def edit_memory(
        self,
        memory: Reference,
        text: Annotated[str, Field(description="The whole new text.", min_length=1)],
    ) -> str:
        """Replace the text of a memory, as a new version; return the version's id."""
        check_length(text, self._most)
        return (await self._bank.aedit(memory, text)).id

    async def forget(self, memory: Name) -> int:
        """Delete a memory and its versions; return the number of versions."""
        return (await self._bank.aforget(memory)).versions

    async def resources(self) -> list[Resource]:
        """Return all memories as resources."""
        return [
            Resource(
                uri=TEMPLATE.format(name=quote(memory.name, safe="")),
                name=memory.name,
                description=f"{memory.question} (from {memory.source})",
                mime_type="text/plain",
            )
            for memory in await self.list_memories()
        ]

    async def resource(self, name: str) -> str:
        """Return the text of a memory, as the content of a resource.

        Raises:
            ResourceNotFoundError: There is no such memory.
        """
        try:
            return (await self._bank.aget(name)).text
        except MemoryNotFoundError as error:
            raise ResourceNotFoundError(str(error)) from error
