"""Tools that read: each call is a reading with progress, which a client can cancel."""

from __future__ import annotations

from base64 import b64decode
from contextlib import aclosing, contextmanager
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
from mcp.server.mcpserver import Context, ListRoots, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ListRootsResult, TextContent
from pydantic import BaseModel, Field

from memagent_graph.errors import MemAgentError, SourceError
from memagent_graph.memory.version import make_reading_key
from memagent_graph.sync import to_thread
from memagent_graph.text.files import open_source
from memagent_graph.text.source import warnings_of
from memagent_graph.tool import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.text.source import Source
    from memagent_mcp_server.roots import Roots


async def ask_for_roots(context: Context[Any, Any]) -> ListRoots | None:
    """Ask a client for its roots, if it offers any and is on this machine.

    They are asked for at each reading, so that a change applies from the next reading on, even if
    the client does not report it.
    """
    offers = context.client_capabilities is not None and context.client_capabilities.roots
    return ListRoots() if offers and _on_this_machine(context) else None


ClientRoots = Annotated[ListRootsResult | None, Resolve(ask_for_roots)]
"""The roots that a client lists; None if it offers none."""


def addresses(roots: ListRootsResult | None) -> Sequence[str] | None:
    """Return the addresses of a client's roots; None if it offers none."""
    return None if roots is None else [str(root.uri) for root in roots.roots]


def _on_this_machine(context: Context[Any, Any]) -> bool:
    """Whether the client runs on this machine, so that its folders are ours."""
    request = context.request_context.request
    if request is None:  # standard input and output
        return True
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:  # a proxy reports something else
        return False


Question = Annotated[
    str, Field(description="One complete question, understandable without this conversation.")
]
Reference = Annotated[str, Field(description="A memory's name, or the id of one of its versions.")]

_STOPPED = (
    "The server was stopped. What was read is kept: call the same tool again with the same "
    "arguments to continue the reading."
)


class Place(BaseModel):
    """A place in a source; `page` and `heading` are None if the source has none."""

    source: str
    line: int
    page: int | None
    heading: str | None
    text: str


class ReadingResult(BaseModel):
    """The result of a reading.

    Attributes:
        answer: the answer.
        places: the answer's places in the source, as far as they are known.
        memory: name of the stored memory; None if it could not be stored.
        coverage: share of the source that was read, 0 to 1.
        found: whether the memory held the answer; None if that is not known.
        warnings: problems that did not stop the reading.
    """

    answer: str
    places: list[Place]
    memory: str | None
    coverage: float
    found: bool | None
    warnings: list[str]


class ReadingTools:
    """Answers from sources, and from memories of them: store and namespace are those of `bank`."""

    def __init__(self, agent: ReadingGraph, bank: MemoryBank, roots: Roots) -> None:
        self._agent = agent
        self._bank = bank
        self._roots = roots
        self._under_way: dict[anyio.CancelScope, anyio.Event] = {}

    async def stop(self) -> None:
        """End the readings under way, and wait until what they read is stored."""
        ended = list(self._under_way.values())
        for scope in self._under_way:
            scope.cancel()
        for event in ended:
            await event.wait()

    async def read(
        self,
        question: Question,
        source: Annotated[
            str,
            Field(
                description="A root's name, or a path below it, pictures too; or a picture itself, "
                "as a URL of the form data:image/png;base64,..."
            ),
        ],
        context: Context[Any, Any],
        client_roots: ClientRoots,
    ) -> Annotated[CallToolResult, ReadingResult]:
        """Read a file or folder from beginning to end, and answer a question from it.

        However long it is, asking again, or continuing after a stop, reads only what is new.
        """
        with self._until_stopped():
            within = addresses(client_roots)
            document = await to_thread(partial(_open, self._roots, source, within))
            output = await self._run({"question": question}, context, document)
            return _result(output, await self._name(output["version"]))

    async def ask_memory(
        self, question: Question, memory: Reference, context: Context[Any, Any]
    ) -> Annotated[CallToolResult, ReadingResult]:
        """Answer another question from the memory of a reading, and read nothing."""
        with self._until_stopped():
            output = await self._run({"question": question, "version": memory}, context)
            return _result(output, memory)

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        with anyio.CancelScope() as scope:
            self._under_way[scope] = anyio.Event()
            try:
                yield
            finally:
                self._under_way.pop(scope).set()
        if scope.cancelled_caught:
            raise ToolError(_STOPPED)

    async def _run(
        self, asked: dict[str, Any], context: Context[Any, Any], document: Any = None
    ) -> dict[str, Any]:
        output: dict[str, Any] = {}
        parts = self._agent.astream(
            asked,
            context={"document": document},
            stream_mode=["custom", "values"],
            output_keys=self._agent.output_channels,
        )
        async with aclosing(cast("AsyncGenerator[Any]", parts)) as running:
            async for mode, part in running:
                if mode == "values":
                    output = part
                elif part["event"] == "chunk":
                    message = f"chunk {part['chunk']} of about {part['chunks']}"
                    await context.report_progress(part["position"], part["length"], message)
        return output

    async def _name(self, version: str | None) -> str | None:
        if version is None:
            return None
        try:
            found = await self._bank.aget(version)
            return make_reading_key(found.root, found.document.digest)
        except MemAgentError:  # there is an answer, and a warning about the store
            return None


def _open(roots: Roots, source: str, within: Iterable[str] | None) -> Source:
    """Open a source below the roots, or the picture of a URL that holds it."""
    head, held, data = source.partition(";base64,")
    if not (held and head.startswith("data:image/")):
        return roots.open(source, within)
    try:
        content = b64decode("".join(data.split()), validate=True)
    except ValueError as error:
        message = "The picture is not base64: encode the bytes of its file."
        raise SourceError(message) from error
    picture = open_source(content, name="picture.png")
    if not getattr(picture, "pictures", ()):
        reason = "; ".join(warnings_of(picture)) or "send a PNG, JPEG, GIF, WebP, BMP or TIFF file"
        message = f"The URL holds no picture that can be read: {reason}."
        raise SourceError(message)
    return picture


def _result(output: dict[str, Any], memory: str | None) -> CallToolResult:
    text, _ = describe(output)
    if memory:
        text += f"\n\nThe memory of it is called {memory}."
    cited = output["citations"] or output["evidence"]
    result = ReadingResult(
        answer=output["answer"],
        places=[Place(**{key: item[key] for key in Place.model_fields}) for item in cited],
        memory=memory,
        coverage=output["coverage"],
        found=output["found"],
        warnings=output["warnings"],
    )
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=result.model_dump()
    )
