"""The tools for the memories of people: what agents remember of them, and what operators do."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

from langchain_core.messages import HumanMessage
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from memagent_graph.text.tokens import EstimatingTokenizer
from memagent_mcp_server.failing import failing_as_a_tool

if TYPE_CHECKING:
    from memagent_graph.conversation.memory import ConversationMemory

BY = "mcp"
"""Who changes a memory here, in its history."""

User = Annotated[str, Field(description="The id of the person.", min_length=1, max_length=512)]
Thread = Annotated[str, Field(description="The conversation in which it was said.", max_length=512)]

About = Annotated[
    str,
    Field(
        description="What is said now: earlier messages that bear on it are told word for word.",
        max_length=100_000,
    ),
]


class UserMemory(BaseModel):
    """What is remembered of a person."""

    user: str
    text: str
    tokens: int
    changed_at: str | None


class UserLine(BaseModel):
    """A line that a search found."""

    user: str
    text: str


class UserChange(BaseModel):
    """A change of a person's memory."""

    at: str
    what: str
    by: str
    version: str
    thread: str
    messages: list[str]
    model: str


class ForgottenPerson(BaseModel):
    """What forgetting a person did.

    Attributes:
        items: how many stored items were deleted.
        threads: whose messages had been remembered: a checkpointer may hold them.
        left: where deleted text may still be, and what to do about it.
    """

    items: int
    threads: list[str]
    left: str


class UserTools:
    """Remembers people, and finds, edits, exports and forgets what is remembered.

    Args:
        memory: of all of them, with a store of its own.
        most_tokens: longest text that an edit may give a memory.
    """

    def __init__(self, memory: ConversationMemory, most_tokens: int) -> None:
        self._memory = memory
        self._users = memory.users()
        self._most = most_tokens

    async def remember(
        self,
        user: User,
        said: Annotated[str, Field(description="What the person said, word for word.")],
        thread: Thread = "mcp",
    ) -> str:
        """Remember what a person said; returns what is remembered of them now."""
        # The same words again are the same message, as when a client repeats a call.
        key = sha256(f"{thread}\0{said}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with failing_as_a_tool():
            return await self._memory.asave([HumanMessage(said, id=key)], user=user, thread=thread)

    async def recall(self, user: User, about: About = "") -> str:
        """Tell what is remembered of a person; empty if nothing is."""
        with failing_as_a_tool():
            remembered = await self._memory.aload(user)  # which says if the store is away
            if not about:
                return remembered
            told = await self._memory.aprompt(user, about=about)
            return "".join(message.text for message in told)

    async def list_users(self) -> list[UserMemory]:
        """List all people of whom something is remembered."""
        with failing_as_a_tool():
            return [
                UserMemory(
                    user=user,
                    text="" if version is None else version.text,
                    tokens=0 if version is None else version.tokens,
                    changed_at=None if version is None else version.created_at,
                )
                for user, version in await self._users.alist()
            ]

    async def search_users(
        self,
        words: Annotated[str, Field(description="Words that a line must have, all of them.")],
    ) -> list[UserLine]:
        """Find people and lines of their memories by words."""
        with failing_as_a_tool():
            found = await self._users.asearch(words)
            return [UserLine(user=user, text=text) for user, text in found]

    async def user_history(self, user: User) -> list[UserChange]:
        """Tell who changed a person's memory, when, from which messages and with which model."""
        with failing_as_a_tool():
            _, changes = await self._users.ahistory(user)
            return [
                UserChange(
                    at=change.at,
                    what=change.what,
                    by=change.by,
                    version=change.version,
                    thread=change.thread,
                    messages=[*change.messages],
                    model=change.model,
                )
                for change in changes
            ]

    async def edit_user(
        self,
        user: User,
        text: Annotated[str, Field(description="The whole new text.", min_length=1)],
    ) -> str:
        """Give a person's memory another text, as a new version; returns the version's id."""
        tokens = EstimatingTokenizer().count(text)
        if not text.strip() or tokens > self._most:
            message = f"A memory has between 1 and {self._most} tokens, and this text {tokens}."
            raise ToolError(message)
        with failing_as_a_tool():
            return (await self._users.aedit(user, text, by=BY)).id

    async def export_user(self, user: User) -> str:
        """All that is stored of a person, as JSON lines."""
        with failing_as_a_tool():
            return "\n".join(await self._users.aexport([user]))

    async def forget_user(self, user: User) -> ForgottenPerson:
        """Delete all that is stored of a person."""
        with failing_as_a_tool():
            done = await self._memory.aforget(user, by=BY)
            return ForgottenPerson(items=done.items, threads=[*done.threads], left=done.left)
