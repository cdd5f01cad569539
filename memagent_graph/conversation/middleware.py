"""A chatbot's long-term memory as a middleware of LangChain's `create_agent`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any, NotRequired
from uuid import uuid4

from langgraph.config import get_config
from langgraph.types import Command

from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.messages import is_reply
from memagent_graph.conversation.node import Thread
from memagent_graph.conversation.thread import Speakers, UserOf, turn_of
from memagent_graph.conversation.tools import review
from memagent_graph.errors import install_hint
from memagent_graph.sync import to_sync, wait_for

with install_hint('MemAgentMiddleware needs: pip install "memagent-graph[langchain]"'):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse
    from langchain.agents.middleware.types import ModelRequest, PrivateStateAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain.agents.middleware import ModelResponse
    from langgraph.runtime import Runtime

    _Request = ModelRequest[Any]
    _Response = ModelResponse[Any]

_RESERVED = str.maketrans(":|", "--")
"""Characters that LangGraph does not allow in the names of nodes."""


class MemAgentState(AgentState[Any]):
    """The state of an agent that remembers, as `ConversationState`; the memory is not in it."""

    memory_user: NotRequired[Annotated[str, PrivateStateAttr]]
    memory_left: NotRequired[Annotated[str, PrivateStateAttr]]


class MemAgentMiddleware(AgentMiddleware[MemAgentState, Any, Any]):
    """Gives the model the user's memory, and remembers each turn after its reply.

    The user is `user_id` in the run's context (a field or key) or in its config:
    `{"configurable": {"user_id": ..., "thread_id": ...}}`. The memory is kept in its own store
    or else in the agent's.

    The model sees the memory and the recent messages. The thread keeps all of them.

    Args:
        memory: the memory of the users; by default, a `ConversationMemory` with its defaults.
        user: function of the run's runtime and config that returns the id of the user instead.
            Without a user, the thread has a memory of its own, and that is logged once.
        strict: whether a run without a user is an error instead.
        shorten_state: whether to remove messages that the model no longer sees from the thread.

    Raises:
        MissingDependencyError: On import, if `langchain` is not installed.

    Examples:
        >>> from langchain.agents import create_agent
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory, MemAgentMiddleware
        >>> memory = ConversationMemory("openai:gpt-4o", window=20)
        >>> middleware = [MemAgentMiddleware(memory)]
        >>> agent = create_agent("openai:gpt-4o", middleware=middleware, store=InMemoryStore())
    """

    state_schema = MemAgentState

    def __init__(
        self,
        memory: ConversationMemory | None = None,
        *,
        user: UserOf | None = None,
        strict: bool = False,
        shorten_state: bool = False,
    ) -> None:
        super().__init__()
        self._shorten_state = shorten_state
        self.memory = memory or ConversationMemory()
        self._speakers = Speakers(user, strict=strict)

    @property
    def name(self) -> str:
        """The name among the middlewares of an agent, each of which needs one of its own."""
        name, people = type(self).__name__, self.memory.people
        reads = f" (reads {'/'.join(people.namespace)})".translate(_RESERVED)
        return name + reads if people.read_only else name

    async def awrap_model_call(
        self, request: _Request, handler: Callable[[_Request], Awaitable[_Response]]
    ) -> _Response | ExtendedModelResponse[Any]:
        """Show the model what is remembered and recent, and let the turn be folded after a reply.

        What changes in the state is written with the reply, in the step of the model.
        """
        thread, shown, changed = await self._show(request)
        return await self._note(thread, await handler(shown), changed)

    def wrap_model_call(
        self, request: _Request, handler: Callable[[_Request], _Response]
    ) -> _Response | ExtendedModelResponse[Any]:
        """Do what `awrap_model_call` does."""
        thread, shown, changed = wait_for(self._show(request))
        return wait_for(self._note(thread, handler(shown), changed))

    async def _show(self, request: _Request) -> tuple[Thread, _Request, dict[str, Any]]:
        """Return a request with what is remembered, and without what left the view."""
        thread = Thread(self.memory, self._speakers, request.state, request.runtime, get_config())
        profile = getattr(request.model, "profile", None) or {}
        thread.turn_tokens = (profile.get("max_input_tokens") or inf) / 2  # the rest has room, too
        shown, changed = await thread.show(request.messages, shorten=self._shorten_state)
        return thread, request.override(messages=shown), changed

    async def _note(
        self, thread: Thread, response: _Response, changed: dict[str, Any]
    ) -> _Response | ExtendedModelResponse[Any]:
        """Let a turn that ends with a response be folded, and write what changed."""
        for message in response.result:
            message.id = message.id or str(uuid4())
        if is_reply(response.result) or response.structured_response is not None:
            await thread.end(response.result)
        return ExtendedModelResponse(response, Command(update=changed)) if changed else response


class ApprovalMiddleware(AgentMiddleware[MemAgentState, Any, Any]):
    """Interrupts a turn at its beginning if something new waits for approval, as `ApprovalNode`.

    Args:
        memory: the memory of the users, with `approve=True`; one that is read-only is not asked.
        user, strict: as for `MemAgentMiddleware`.

    Examples:
        >>> from memagent_graph import ApprovalMiddleware, ConversationMemory, MemAgentMiddleware
        >>> memory = ConversationMemory("openai:gpt-4o", approve=True)
        >>> middleware = [ApprovalMiddleware(memory), MemAgentMiddleware(memory)]
    """

    state_schema = MemAgentState

    def __init__(
        self, memory: ConversationMemory[Any], *, user: UserOf | None = None, strict: bool = False
    ) -> None:
        super().__init__()
        self.memory = memory
        self._speakers = Speakers(user, strict=strict)

    async def abefore_agent(self, state: MemAgentState, runtime: Runtime[Any]) -> None:
        """Interrupt the run if something new waits for approval."""
        config, known = get_config(), state.get("memory_user")
        speaker = turn_of(self._speakers.of(runtime, config, known), state)
        if not self.memory.read_only:
            await review(self.memory, speaker, runtime.store, config)

    before_agent: Any = to_sync(abefore_agent)
