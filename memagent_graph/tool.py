"""Tools with which an agent asks a document of any length, and looks up the facts of a memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangChain reads the annotation
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field, create_model

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, MemAgentError
from memagent_graph.evidence.places import Evidence
from memagent_graph.graph.build import create_memagent
from memagent_graph.seams import with_runtime_only
from memagent_graph.sync import to_sync
from memagent_graph.templates import plural
from memagent_graph.text.files import corpus
from memagent_graph.text.source import is_lost

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from typing_extensions import Unpack

    from memagent_graph.graph.build import ReadingOptions
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.files import DocumentLike

_DESCRIPTION = (
    "Answer questions from one of the sources, however long it is: it is searched, and read from "
    "beginning to end for what a search does not answer. Each is one complete question that can be "
    "understood without this conversation. Ask all that you want to know of a source in one call. "
    "Returns the answers and where in the source they stand."
)
_Said = tuple[str, dict[str, object]]
"""The message to an agent, and the artifact."""
_MOST_PLACES = 5
"""Places that are named to the agent; the artifact has all."""


def create_reading_tool(
    model: str | BaseChatModel | Reader | None = None,
    *,
    sources: Mapping[str, DocumentLike] | Iterable[str | PathLike[str]] | corpus,
    name: str = "read",
    description: str = _DESCRIPTION,
    **options: Unpack[ReadingOptions],
) -> BaseTool:
    """Create a tool that reads a source by its name, once for all questions of a call.

    The tool can reach only the sources that it was given: names are looked up, never opened as
    paths. An error is returned as the tool's message, for the agent to act on. In a LangGraph agent
    the reading's events go to the host's stream, and memories to the host's store.

    Args:
        model: model that reads, as for `create_memagent`.
        sources: documents by name (a `str` is text, a `Path` a file), a path or a list of paths,
            named by their last part, or `corpus(...)`, each of whose documents is a source.
        name: name of the tool.
        description: description of the tool for the agent.
        options: others of `create_memagent`: `config`, `store` (the host's by default),
            `namespace`, `prompts`, `tokenizer`, `verify` and `response_format`; the message has
            answers of that form as JSON.

    Returns:
        A tool whose message has the answers, and whose artifact has the fields of `ReadingOutput`.
        If one of several questions fails, both have its error.

    Raises:
        ConfigurationError: There are no sources, or two of the same name.

    Examples:
        >>> from memagent_graph import create_reading_tool
        >>> sources = {"lease": "Ann Kestrel signed the lease."}  # or paths
        >>> read = create_reading_tool(sources=sources)  # create_agent(..., tools=[read])
        >>> print(read.invoke({"questions": ["Who signed the lease?"], "source": "lease"}))
        Ann Kestrel signed the lease.
        <BLANKLINE>
        It stands at lease:1.
    """
    named = _name_sources(sources)
    options["config"] = (options.get("config") or ReadingConfig()).or_auto()
    agent: Any = create_memagent(model, **options, name=name)

    async def aread(questions: list[str], source: str, config: RunnableConfig) -> _Said:
        context = {"document": named[source]}
        asked = {"questions": questions} if len(questions) > 1 else {"question": questions[0]}
        try:
            output = await agent.ainvoke(asked, with_runtime_only(config), context=context)
            return describe(output, _shorten_name(source, named[source]))
        except MemAgentError as error:
            raise ToolException(str(error)) from error

    return StructuredTool.from_function(
        to_sync(aread),
        aread,
        name=name,
        description=description,
        args_schema=_schema(list(named)),
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=f"Give questions, and a source. Choose one of: {', '.join(named)}.",
    )


def _name_sources(
    sources: Mapping[str, DocumentLike] | Iterable[str | PathLike[str]] | corpus,
) -> dict[str, object]:
    if isinstance(sources, corpus):
        parts = sources.open_sources().parts
        found: dict[str, object] = {part.name: part for part in parts}
        if len(found) < len(parts):
            raise ConfigurationError("Two sources have the same name: name each of them.")
    elif isinstance(sources, Mapping):
        found = dict(sources)
    else:
        paths = [*map(Path, [sources] if isinstance(sources, str | PathLike) else sources)]
        found = {path.name or str(path): path for path in paths}
        if len(found) < len(paths):
            raise ConfigurationError("Two sources have the same name: give them as a mapping.")
    if not found:
        raise ConfigurationError("A reading tool needs at least one source.")
    return found


def _schema(names: list[str]) -> type[BaseModel]:
    source: Any = Literal[tuple(names)]
    asked = "One complete question or more, each understandable by itself."
    return create_model(
        "ReadingRequest",
        questions=(list[str], Field(description=asked, min_length=1)),
        source=(source, Field(description="Name of the source to read.")),
    )


def _shorten_name(name: str, document: object) -> Mapping[str, str]:
    """The name that an agent knows a text or a file by, for the one that its places have."""
    if isinstance(document, str):
        return {"text": name}
    path = document.get("path") if isinstance(document, Mapping) else document
    return {str(Path(path)): name} if isinstance(path, str | PathLike) else {}


def describe(output: dict[str, Any], known: Mapping[str, str] = MappingProxyType({})) -> _Said:
    """The message to an agent: the answers with their places and coverage; and the artifact.

    In the message, sources have the names by which the agent has `known` them. If all of several
    questions failed, it is a `ToolException`.
    """
    records = output.get("answers")
    if not records:
        return _answer(output, known), output
    if all(record["error"] is not None for record in records):
        raise ToolException("\n".join(dict.fromkeys(record["error"] for record in records)))
    said = [
        f"{record['question']}\n{record['error'] or _answer(record, known)}" for record in records
    ]
    return "\n\n".join(said), output


def _answer(output: dict[str, Any], known: Mapping[str, str]) -> str:
    cited = output["citations"] or output["evidence"]
    named = [{**item, "source": known.get(item["source"], item["source"])} for item in cited]
    places = dict.fromkeys(Evidence(**item).place for item in named)
    text: str = output["answer"]
    if places:
        text += f"\n\nIt stands at {'; '.join(list(places)[:_MOST_PLACES])}."
    if output["coverage"] < 1:
        text += f"\n\nOnly {output['coverage']:.0%} of the source was read."
    if output["found"] is False and output["unsupported"]:
        text += f"\n\n{_NO_SUPPORT}"
    elif missing := dict.fromkeys(item["text"] for item in output["unsupported"]):
        text += f"\n\nNot supported by what was read: {' '.join(missing)}"
    lost = (found["name"] for found in output.get("sources", ()) if is_lost(found))
    if skipped := [known.get(name, name) for name in lost]:
        text += f"\n\nNot read: {', '.join(skipped[:_MOST_PLACES])}"
        more = len(skipped) - _MOST_PLACES
        text += f" and {plural(more, 'other file')}." if more > 0 else "."
    return text


_NO_SUPPORT = "Do not rely on this answer: it is not supported by what was read."

_LOOK_UP = (
    "Look up facts that were read. Give a subject by its name, a relation, or both; `at` is a day, "
    "month or year (2023-05-01, 2023-05 or 2023) at which they must hold, today by default. "
    "Returns one fact a line, with the place that says so."
)


def create_facts_tool(
    bank: MemoryBank, memory: str, *, name: str = "look_up_facts", description: str = _LOOK_UP
) -> BaseTool:
    """Create a tool that looks up the facts of a stored memory, without a model.

    For the facts of a user, `create_memory_tools` has a tool.

    Args:
        bank: the memories.
        memory: name of a memory that was read with `schema=Facts`, or the id of a version.
        name: name of the tool.
        description: description of the tool for the agent.

    Returns:
        A tool whose message has the facts; an error is returned as its message.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import Facts, MemoryBank, create_facts_tool, create_memagent
        >>> store = InMemoryStore()
        >>> asked = {"question": "What is the rent?", "memory_name": "lease"}
        >>> agent = create_memagent("openai:gpt-4o-mini", schema=Facts, store=store)
        >>> out = agent.invoke({**asked, "document": "The rent of Lease 7 is 900 euros."})
        >>> look_up = create_facts_tool(MemoryBank(store), "lease")  # create_agent(..., tools=...)
        >>> print(look_up.invoke({"subject": "Lease 7"}))
        Lease 7 | rent | 900 euros [text:1]
    """

    async def alook_up(subject: str = "", relation: str = "", at: str = "") -> str:
        from memagent_graph.facts.graph import describe_facts, select_facts
        from memagent_graph.facts.record import facts_of

        about, of = subject or None, relation or None
        try:
            known = facts_of(await bank.aget(memory))
            found = select_facts(known, subject=about, relation=of, at=at or None)
        except MemAgentError as error:
            raise ToolException(str(error)) from error
        return describe_facts(found)

    return StructuredTool.from_function(
        to_sync(alook_up), alook_up, name=name, description=description, handle_tool_error=True
    )
