"""A chatbot's long-term memory as a middleware of LangChain's `create_agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig

from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.node import changes, recalled, speaker
from memagent_graph.errors import MissingDependencyError
from memagent_graph.prompts import remembered
from memagent_graph.sync import wait_for

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import PrivateStateAttr
except ImportError as error:
    raise MissingDependencyError(
        'MemAgentMiddleware needs: pip install "memagent-graph[langchain]"'
    ) from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain.agents.middleware import ModelRequest, ModelResponse
    from langgraph.runtime import Runtime

    _Runtime = Runtime[Any]
    _Request = ModelRequest[Any]
    _Response = ModelResponse[Any]

_UNNAMED = RunnableConfig()
"""Where LangGraph gives no config, nobody is named, which is an error of its own."""


class MemAgentState(AgentState[Any]):
    """The state of an agent that remembers.

    Attributes:
        long_term_memory: the memory of the user, as of this turn.
    """

    long_term_memory: NotRequired[Annotated[str, PrivateStateAttr]]


class MemAgentMiddleware(AgentMiddleware[MemAgentState, Any, Any]):
    """Folds what lies beyond a recent window into the memory of the user.

    The run's config names who talks: `{"configurable": {"user_id": ..., "thread_id": ...}}`.
    Without a user, the thread has a memory of its own. The memory is kept in its own store or
    else in the agent's.

    Args:
        memory: what to keep it in; a `ConversationMemory` with its defaults when not given.

    Raises:
        MissingDependencyError: On import, if `langchain` is not installed.

    Example:
        ```python
        agent = create_agent(model, tools, middleware=[MemAgentMiddleware()], store=store)
        ```
    """

    state_schema = MemAgentState

    def __init__(self, memory: ConversationMemory | None = None) -> None:
        super().__init__()
        self.memory = memory or ConversationMemory()

    async def abefore_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Load the memory of the user."""
        return await self._recall(runtime, config)

    def before_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """As `abefore_agent`."""
        return wait_for(self._recall(runtime, config))

    async def abefore_model(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Fold what lies beyond the window."""
        return await self._fold(state, runtime, config)

    def before_model(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """As `abefore_model`."""
        return wait_for(self._fold(state, runtime, config))

    async def awrap_model_call(
        self,
        request: _Request,
        handler: Callable[[_Request], Awaitable[_Response]],
    ) -> _Response:
        """Tell the model what is remembered."""
        return await handler(_informed(request))

    def wrap_model_call(
        self,
        request: _Request,
        handler: Callable[[_Request], _Response],
    ) -> _Response:
        """As `awrap_model_call`."""
        return handler(_informed(request))

    async def _recall(self, runtime: _Runtime, config: RunnableConfig) -> dict[str, object]:
        user, _ = speaker(config)
        text = await recalled(self.memory, user, runtime.store)
        return {} if text is None else {"long_term_memory": text}

    async def _fold(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig
    ) -> dict[str, object] | None:
        user, thread = speaker(config)
        before = state["messages"]
        stays = await self.memory.aobserve(
            before, user=user, thread=thread, store=runtime.store, config=config
        )
        update: dict[str, object] = {"messages": changes(before, stays)}
        if len(stays) < len(before):
            update |= await self._recall(runtime, config)
        return update if update["messages"] else None


def _informed(request: _Request) -> _Request:
    told = remembered(request.state.get("long_term_memory") or "")  # type: ignore[arg-type] # a state has any keys
    if not told:
        return request
    own = request.system_message
    blocks = [] if own is None else own.content
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    message = SystemMessage([*blocks, {"type": "text", "text": told}])
    return request.override(system_message=message)
