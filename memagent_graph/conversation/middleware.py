"""A chatbot's long-term memory as a middleware of LangChain's `create_agent`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from memagent_graph.conversation.approval import areview, review
from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.messages import exclude, mark_messages, view
from memagent_graph.conversation.node import begin, changes, shorten
from memagent_graph.conversation.session import Speakers, UserOf
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.errors import install_hint
from memagent_graph.sync import wait_for

with install_hint('MemAgentMiddleware needs: pip install "memagent-graph[langchain]"'):
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import ModelRequest, PrivateStateAttr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain.agents.middleware import ModelResponse
    from langgraph.runtime import Runtime

    from memagent_graph.conversation.session import Talk

    _Runtime = Runtime[Any]
    _Request = ModelRequest[Any]
    _Response = ModelResponse[Any]

_RESERVED = str.maketrans(":|", "--")
"""Characters that LangGraph does not allow in the names of nodes."""
_UNNAMED = RunnableConfig()
"""Config where LangGraph gives none: it names no user, which is an error of its own."""


class MemAgentState(AgentState[Any]):
    """The state of an agent that remembers; the memory itself is not in it.

    Attributes:
        memory_user: id of the user whose memory the thread's messages went to last.
        memory_folded: id of the thread's message that was folded last, as far as known.
        memory_left: id of a message: what precedes it, and its group, the model does not see.
    """

    memory_user: NotRequired[Annotated[str, PrivateStateAttr]]
    memory_folded: NotRequired[Annotated[str, PrivateStateAttr]]
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

    async def abefore_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Find out who talks; when a thread starts, fold what the others have said."""
        if self.memory.read_only:
            return None
        await self._talk(state, runtime, config).begin(state["messages"])
        if self._review:
            speaker = self._speakers.of(runtime, config, state.get("memory_user"))
            await areview(self.memory, speaker.user, runtime.store)
        return self._begin(state, runtime, config)

    def before_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Do what `abefore_agent` does."""
        if self.memory.read_only:
            return None
        if self._talk(state, runtime, config).opens(state["messages"]):
            wait_for(self._talk(state, runtime, config).begin(state["messages"]))
        if self._review:
            speaker = self._speakers.of(runtime, config, state.get("memory_user"))
            review(self.memory, speaker.user, runtime.store)
        return self._begin(state, runtime, config)

    def _begin(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig
    ) -> dict[str, object] | None:
        speaker = self._speakers.of(runtime, config, state.get("memory_user"))
        messages = state["messages"]
        update = begin(self.memory, speaker, state, messages, runtime.store, config)
        if not self._speakers.access(runtime, config).writes:
            update["messages"] = changes(messages, exclude(messages))
        return update or None

    async def abefore_model(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Let messages beyond the window leave what the model sees."""
        if self.memory.read_only:
            return None
        talk = self._talk(state, runtime, config)
        _, changed = await shorten(talk, state, {}, in_state=self._shorten_state)
        return changed or None

    def before_model(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Do what `abefore_model` does."""
        if self.memory.read_only:
            return None
        before = state["messages"]
        now = mark_messages(before)
        talk = self._talk(state, runtime, config)
        if talk.fits(view(now, state.get("memory_left"))):  # no thread has to be changed
            return {"messages": changed} if (changed := changes(before, now)) else None
        return wait_for(self.abefore_model(state, runtime, config))

    async def aafter_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Let the turn be folded, in the background."""
        return self.after_agent(state, runtime, config)

    def after_agent(
        self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig = _UNNAMED
    ) -> dict[str, object] | None:
        """Do what `aafter_agent` does."""
        if self.memory.read_only:
            return None
        talk = self._talk(state, runtime, config)
        talk.note(state["messages"], state.get("memory_folded"), ended=True)
        return None

    async def awrap_model_call(
        self, request: _Request, handler: Callable[[_Request], Awaitable[_Response]]
    ) -> _Response:
        """Tell the model what is remembered."""
        request = _without_left(request)
        return await handler(_add_memory(request, await self._recall(request)))

    def wrap_model_call(
        self, request: _Request, handler: Callable[[_Request], _Response]
    ) -> _Response:
        """Do what `awrap_model_call` does."""
        request = _without_left(request)
        return handler(_add_memory(request, wait_for(self._recall(request))))

    async def _recall(self, request: _Request) -> list[SystemMessage]:
        known = cast("MemAgentState", request.state).get("memory_user")
        runtime, config = request.runtime, get_config()
        user = AnonymousUser.restore(known) if known else ""
        if not user or self.memory.read_only:
            user = self._speakers.of(runtime, config, known).user
        if not self._speakers.access(runtime, config).reads:
            return []
        about = request.messages
        return await self.memory.aprompt(user, about=about, store=runtime.store, config=config)

    def _talk(self, state: MemAgentState, runtime: _Runtime, config: RunnableConfig) -> Talk:
        speaker = self._speakers.of(runtime, config, state.get("memory_user"))
        return self.memory.talk(*speaker, runtime.store, config)


def _without_left(request: _Request) -> _Request:
    """Return a request without the messages that the model no longer sees, by their ids.

    Other middleware may have changed the request's messages.
    """
    state = cast("MemAgentState", request.state)
    left = state.get("memory_left")
    if not left:
        return request
    stay = {message.id for message in view(state["messages"], left)}
    gone = {message.id for message in state["messages"] if message.id not in stay}
    return request.override(messages=[m for m in request.messages if m.id not in gone])


def _add_memory(request: _Request, messages: list[SystemMessage]) -> _Request:
    if not messages:
        return request
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
