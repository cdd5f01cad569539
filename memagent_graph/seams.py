"""Every private name of other libraries that this one needs, and nothing else.

Tests fail without each of them: those of tests/test_seams.py where no others would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from langgraph._internal._constants import (
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
)
from langgraph._internal._runnable import RunnableCallable as RunnableCallable  # noqa: PLC0414
from langgraph._internal._typing import MISSING as MISSING  # noqa: PLC0414

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    import aiosqlite
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.channels.base import BaseChannel
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.runtime import Runtime
    from langgraph.store.memory import InMemoryStore
    from langgraph.types import Checkpointer

    Compiled = CompiledStateGraph[Any, Any, Any, Any]

Kind = TypeVar("Kind", bound="Compiled")
T = TypeVar("T")


def as_kind(kind: type[Kind], compiled: Compiled) -> Kind:
    """A compiled graph as one of a subclass, which `StateGraph.compile` cannot make."""
    fields = {name: value for name, value in vars(compiled).items() if name != "__orig_class__"}
    return kind(**fields)


async def call_with_connection(
    connection: aiosqlite.Connection, act: Callable[[sqlite3.Connection], T]
) -> T:
    """Call a function with SQLite's connection, in the thread of an asynchronous one.

    The call is carried out whole, also if the caller is cancelled.
    """
    found: T = await connection._execute(act, connection._conn)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return found


def checkpointer_of(graph: Compiled, config: RunnableConfig) -> BaseCheckpointSaver[str] | None:
    """The checkpointer of a run: the graph's own, or the one that its host lends it."""
    return graph._resolve_checkpointer(config)  # noqa: SLF001 - it has no public name


def saver_of(config: RunnableConfig | None) -> BaseCheckpointSaver[Any] | None:
    """Return the checkpointer of the run in whose node this is; None without one."""
    found: BaseCheckpointSaver[Any] | None
    found = (config or {}).get("configurable", {}).get(CONFIG_KEY_CHECKPOINTER)
    return found


def is_answered(config: RunnableConfig) -> bool:
    """Whether the run was resumed with a reply to an interrupt of the node of this config."""
    pad = config.get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
    return pad is not None and bool(pad.resume or pad.get_null_resume(False) is not None)  # noqa: FBT003 - positional there


class GraphRun(NamedTuple):
    """A run of a graph: its channels as they are, its input, and the step at which it began."""

    channels: Mapping[str, BaseChannel[Any, Any, Any]]
    input: object
    began: int


def runs_of(config: RunnableConfig | None) -> list[GraphRun]:
    """Return the runs in whose nodes this is, from the innermost graph to the root."""
    found: list[GraphRun] = []
    call = (config or {}).get("configurable", {}).get(CONFIG_KEY_CALL)
    while call is not None:
        loop = call.keywords["schedule_task"].__self__
        began = loop.stop - loop.config["recursion_limit"] - 1
        found.append(GraphRun(loop.channels, loop.input, began))
        call = loop.config["configurable"].get(CONFIG_KEY_CALL)
    return found


def channels_of(config: RunnableConfig) -> Mapping[str, BaseChannel[Any, Any, Any]]:
    """The channels of the state that the node of this config writes to; none outside of a graph."""
    return {
        name: channel
        for run in runs_of(config)[:1]
        for name, channel in run.channels.items()
        if not name.startswith(("__", "branch:", "join:"))
    }


def replaces_messages(config: RunnableConfig, messages: Sequence[BaseMessage]) -> bool:
    """Whether the state's reducer puts messages in the place of those with the same ids."""
    channel = channels_of(config).get("messages")
    if channel is None or not channel.is_available():
        return False
    tried = channel.copy()
    tried.update([[*messages]])
    return len(tried.get()) == len(channel.get())


def with_checkpointer(config: RunnableConfig, checkpointer: Checkpointer) -> RunnableConfig:
    """A config that lends a checkpointer to a graph within a node: the host's for None or True."""
    if checkpointer in (None, True):
        return config
    configurable = {**config["configurable"], CONFIG_KEY_CHECKPOINTER: checkpointer or None}
    return {**config, "configurable": configurable}


def runtime_of(config: RunnableConfig) -> Runtime[Any] | None:
    """The runtime of the host in whose node or tool this runs; None at the top."""
    found: Runtime[Any] | None = config.get("configurable", {}).get(CONFIG_KEY_RUNTIME)
    return found


def with_runtime_only(config: RunnableConfig) -> RunnableConfig:
    """The host's config without its checkpoints: two calls of one step would share theirs."""
    runtime = runtime_of(config)
    kept = {} if runtime is None else {CONFIG_KEY_RUNTIME: runtime}
    return {**config, "configurable": kept}


def find_identifying_params(model: BaseChatModel) -> Mapping[str, object]:
    """Return the parameters by which LangChain tells two configurations of a model apart."""
    return model._identifying_params  # noqa: SLF001 - it has no public name


def drop_empty_namespaces(store: InMemoryStore) -> None:
    """Let a store in memory forget the labels of namespaces whose items were all deleted."""
    for held in (store._data, store._vectors):  # noqa: SLF001 - they have no public name
        for namespace in [*held]:
            if not held[namespace]:
                held.pop(namespace, None)
