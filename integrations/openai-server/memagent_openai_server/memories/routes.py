"""`/v1/memories`: the memories of users and sessions, for operators of a client."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.http.requests import User, aparse, limited_body, understand
from memagent_openai_server.http.schema import answers, described
from memagent_openai_server.memories.managing import SESSION, Managing, Name, names_of

if TYPE_CHECKING:
    from memagent_graph.conversation.user_memory import MemoryChange as Change
    from memagent_graph.memory.version import MemoryVersion
    from memagent_openai_server.models import Models


class Whose(BaseModel):
    """The query that names one user or one session."""

    model_config = ConfigDict(extra="forbid")

    user: User = Field("", description="A user, as requests name them in `user`.")
    session: str = Field("", max_length=200, description="A session's name.")


class Wanted(Whose):
    """The query of the list."""

    name: str = Field("", max_length=512, description="Words of a user's or a session's name.")
    text: str = Field("", max_length=1000, description="Words that a line of it must have.")
    limit: int = Field(20, ge=1, le=100, description="Most memories to return.")
    after: str = Field("", max_length=600, description="Id of the memory after which to continue.")


class MemoryText(BaseModel):
    """The body of `PUT /v1/memories`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, description="The whole new text.")
    version: str | None = Field(
        default=None, description="Version to replace; if there is a newer one, 409 is returned."
    )


class MemoryCard(BaseModel):
    """A memory."""

    id: str
    object: Literal["memory"]
    kind: Literal["conversation", "reading"]
    user: str | None
    session: str | None
    version: str
    text: str
    tokens: int
    created_at: int
    edited: bool


class MemoryList(BaseModel):
    """Memories, sorted by id."""

    object: Literal["list"]
    data: list[MemoryCard]
    has_more: bool


class MemoryChange(BaseModel):
    """One change, with the text of its version if that still exists."""

    object: Literal["memory.change"]
    at: str
    what: str
    by: str | None
    version: str | None
    thread: str | None
    messages: list[str]
    model: str | None
    text: str | None


class MemoryHistory(BaseModel):
    """Changes, newest first."""

    object: Literal["list"]
    data: list[MemoryChange]


class MemoryExport(BaseModel):
    """Everything stored, as the lines of `memagent memory export`."""

    object: Literal["list"]
    data: list[dict[str, Any]]


class MemoryDeleted(BaseModel):
    """Deleted memories.

    Attributes:
        threads: ids of threads whose messages were folded; a checkpointer may have them.
        left: the places where deleted text may remain, and what to do about it.
    """

    object: Literal["memory"]
    deleted: Literal[True]
    threads: list[str]
    left: str


def memories(models: Models) -> APIRouter:
    """Return the routes; each tenant has its own memories."""
    router = APIRouter()
    service = models.first

    def managing(request: Request) -> Managing:
        tenant = request.state.record.tenant
        by = "client" if tenant is None else f"key {tenant}"
        return Managing(service.sessions(tenant), by)

    @router.get("/v1/memories", responses=answers(MemoryList), openapi_extra=_query(Wanted))
    async def list_memories(request: Request) -> dict[str, Any]:
        """List memories, or find them by user, session, name and text."""
        wanted = _asked(request, Wanted)
        names = names_of(wanted.user, wanted.session) if wanted.user or wanted.session else None
        if wanted.user and wanted.session:
            raise _one_of_both()
        found = await managing(request).find(
            names,
            named=wanted.name,
            text=wanted.text,
            after=wanted.after,
            most=wanted.limit + 1,
        )
        data = [_card(*each) for each in found[: wanted.limit]]
        return {"object": "list", "data": data, "has_more": len(found) > wanted.limit}

    put = described(MemoryText, MemoryCard, parameters=_query(Whose)["parameters"])

    @router.put("/v1/memories", **put)
    async def edit_memory(request: Request) -> dict[str, Any]:
        """Replace the text of the memory of a user or a session, as a new version."""
        names = _names(request)
        body = await limited_body(request, service.limits)
        _, asked = await aparse(body, MemoryText)
        most = service.config.memory_tokens
        tokens = await unless_small(len(body), service.counter.count, asked.text)
        if not asked.text.strip() or tokens > most:
            message = f"A memory needs 1 to {most} tokens, but this text has {tokens}."
            raise Refusal(400, message, param="text")
        return _card(*await managing(request).edit(names, asked.text, asked.version))

    @router.delete("/v1/memories", responses=answers(MemoryDeleted), openapi_extra=_query(Whose))
    async def forget_memory(request: Request) -> dict[str, Any]:
        """Forget a user or a session: delete everything stored about them."""
        gone = await managing(request).forget(_names(request))
        found = {"object": "memory", "deleted": True}
        return {**found, "threads": [*gone.threads], "left": gone.left}

    @router.get(
        "/v1/memories/history", responses=answers(MemoryHistory), openapi_extra=_query(Whose)
    )
    async def memory_history(request: Request) -> dict[str, Any]:
        """Show who changed a memory, when, from which messages and with which model."""
        rows = await managing(request).history(_names(request))
        return {"object": "list", "data": [_change(*row) for row in rows]}

    @router.get("/v1/memories/export", responses=answers(MemoryExport), openapi_extra=_query(Whose))
    async def export_memory(request: Request) -> dict[str, Any]:
        """Export everything stored about a user or a session."""
        return {"object": "list", "data": await managing(request).export(_names(request))}

    return router


def _query(kind: type[BaseModel]) -> dict[str, Any]:
    """The query of a path, in OpenAPI's format."""
    fields = kind.model_json_schema()["properties"]
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": field}
        for name, field in fields.items()
    ]
    return {"parameters": parameters}


def _asked(request: Request, kind: type[Any]) -> Any:
    """The query of a request.

    Raises:
        Refusal: It does not match `kind`.
    """
    return understand(dict(request.query_params), kind)


def _names(request: Request) -> list[Name]:
    """The memories of the user or session that a request names.

    Raises:
        Refusal: It names neither, or both.
    """
    whose = _asked(request, Whose)
    if bool(whose.user) == bool(whose.session):
        raise _one_of_both()
    return names_of(whose.user, whose.session)


def _one_of_both() -> Refusal:
    message = "Name either a user (?user=NAME) or a session (?session=NAME)."
    return Refusal(400, message, param="user")


def _card(name: Name, version: MemoryVersion) -> dict[str, Any]:
    of_session = name.kind == SESSION
    return {
        "id": name.id,
        "object": "memory",
        "kind": "conversation" if name.kind == "conversation" else "reading",
        "user": None if of_session else name.of,
        "session": name.of if of_session else None,
        "version": version.id,
        "text": version.text,
        "tokens": version.tokens,
        "created_at": int(datetime.fromisoformat(version.created_at).timestamp()),
        "edited": version.edited,
    }


def _change(change: Change | None, version: MemoryVersion | None) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(MemoryChange.model_fields)
    found |= {"object": "memory.change", "messages": []}
    if version is not None:
        what = "edited" if version.edited else "folded" if version.thread else "read"
        found |= {"at": version.created_at, "what": what, "version": version.id}
        found["text"] = version.text
    if change is not None:
        found |= {"at": change.at, "what": change.what, "by": change.by or None}
        found |= {"version": change.version or None, "thread": change.thread or None}
        found |= {"messages": [*change.messages], "model": change.model or None}
    return found
