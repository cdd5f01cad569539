"""A chatbot's long-term memory as a middleware of LangChain's `create_agent`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, SystemMessage
from langgraph.config import get_config

from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.messages import view
from memagent_graph.conversation.node import Thread, review
from memagent_graph.conversation.session import Speakers, UserOf
from memagent_graph.errors import install_hint
from memagent_graph.sync import to_sync, wait_for

with install_hint('MemAgentMiddleware needs: pip install "memagent-graph[langchain]"'):
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import ModelRequest, PrivateStateAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from langchain.agents.middleware import ModelResponse
    from langchain_core.messages import BaseMessage
    from langgraph.runtime import Runtime

    _Runtime = Runtime[Any]
    _Update = dict[str, object] | None
    _Request = ModelRequest[Any]
    _Response = ModelResponse[Any]

_RESERVED = str.maketrans(":|", "--")
"""Characters that LangGraph does not allow in the names of nodes."""


class MemAgentState(AgentState[Any]):
    """The state of an agent that remembers; the memory itself is not in it.

    Attributes:
        memory_user: id of the user whose turn the thread's last one is.
        memory_left: id of a message: what precedes it, and its group, the model does not see.
    """

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
        review: whether a turn begins with an interrupt if something waits for approval; see
            `ApprovalNode`.

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
        review: bool = False,
    ) -> None:
        super().__init__()
        self._name = type(self).__name__
        if memory is not None and memory.read_only:
            place = "/".join(memory.people.namespace)
            self._name += f" (reads {place})".translate(_RESERVED)
        self._review = review
        self._shorten_state = shorten_state
        self.memory = memory or ConversationMemory()
        self._speakers = Speakers(user, strict=strict)

    @property
    def name(self) -> str:
        """The name among the middlewares of an agent, each of which needs one of its own."""
        return self._name

    async def abefore_agent(self, state: MemAgentState, runtime: _Runtime) -> _Update:
        """Find out who talks, and let what they say be found from now on."""
        if self.memory.read_only:
            return None
        thread = self._thread(state, runtime)
        if self._review:
            await review(self.memory, thread.speaker, runtime.store, get_config())
        await thread.open()
        await thread.note(ended=False)
        return thread.begin() or None

    async def abefore_model(self, state: MemAgentState, runtime: _Runtime) -> _Update:
        """Let messages beyond the window leave what the model sees."""
        if self.memory.read_only:
            return None
        thread = await self._thread(state, runtime, begun=True).open()
        _, changed = thread.shorten(in_state=self._shorten_state)
        return changed or None

    async def aafter_agent(self, state: MemAgentState, runtime: _Runtime) -> _Update:
        """Let the turn be folded, in the background."""
        if not self.memory.read_only:
            thread = await self._thread(state, runtime, begun=True).open()
            await thread.note(ended=True)
        return None

    before_agent: Any = to_sync(abefore_agent)
    before_model: Any = to_sync(abefore_model)
    after_agent: Any = to_sync(aafter_agent)

    async def awrap_model_call(
        self, request: _Request, handler: Callable[[_Request], Awaitable[_Response]]
    ) -> _Response:
        """Tell the model what is remembered."""
        return await handler(await self._remind(request))

    def wrap_model_call(
        self, request: _Request, handler: Callable[[_Request], _Response]
    ) -> _Response:
        """Do what `awrap_model_call` does."""
        return handler(wait_for(self._remind(request)))

    async def _remind(self, request: _Request) -> _Request:
        """Return a request with what is remembered, and without what left the view."""
        thread = self._thread(request.state, request.runtime, begun=True)
        shown = request
        if thread.left and not self.memory.read_only:
            shown = _without_left(request, (await thread.open()).now, thread.left)
        return _add_memory(shown, await thread.recall(shown.messages))

    def _thread(
        self, state: Mapping[str, Any], runtime: _Runtime, *, begun: bool = False
    ) -> Thread:
        begun &= not self.memory.read_only
        return Thread(self.memory, self._speakers, state, runtime, get_config(), begun=begun)


def _without_left(request: _Request, now: Sequence[BaseMessage], left: str) -> _Request:
    """Return a request without the messages that the model no longer sees.

    Other middleware may have changed the request's messages: those with ids are known by them.
    """
    stay = {message.id for message in view(now, left)}
    pairs = zip(request.state["messages"], now, strict=True)
    gone = [message for message, mine in pairs if mine.id not in stay]
    ids, same = {m.id for m in gone} - {None}, {id(m) for m in gone}
    return request.override(
        messages=[m for m in request.messages if m.id not in ids and id(m) not in same]
    )


def _add_memory(request: _Request, messages: list[SystemMessage]) -> _Request:
    if not messages:
        return request
    if getattr(request.model, "use_previous_response_id", False):  # it sends what is new alone
        replies = [at for at, m in enumerate(request.messages) if isinstance(m, AIMessage)]
        new = replies[-1] + 1 if replies else 0
        return request.override(
            messages=[*request.messages[:new], *messages, *request.messages[new:]]
        )
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    memories = (*given.pop("memories", ()), messages[0].text)
    return _RememberingRequest(**given, memories=memories).override(
        system_message=request.system_message
    )


@dataclass(init=False)
class _RememberingRequest(ModelRequest[Any]):
    """A request in whose system message memories stand, also if other middleware replaces it."""

    memories: tuple[str, ...] = ()

    def __init__(self, *, memories: tuple[str, ...], **given: Any) -> None:
        super().__init__(**given)
        object.__setattr__(self, "memories", memories)

    def override(self, **overrides: Any) -> _Request:
        changed = super().override(**overrides)
        own = changed.system_message
        for memory in self.memories:
            if own is None or memory not in own.text:
                own = _join(own, memory)
        return changed if own is changed.system_message else replace(changed, system_message=own)


def _join(own: SystemMessage | None, memory: str) -> SystemMessage:
    """Return a system message with the memory at its end; one that is a text stays a text."""
    if own is None:
        return SystemMessage(memory)
    if isinstance(own.content, str):
        text = f"{own.content}\n\n{memory}" if own.content else memory
        return own.model_copy(update={"content": text})
    return own.model_copy(update={"content": [*own.content, {"type": "text", "text": memory}]})
