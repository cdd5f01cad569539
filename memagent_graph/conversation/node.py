"""A chatbot's long-term memory as a node of its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation

from memagent_graph.conversation.messages import is_reply, mark_messages
from memagent_graph.conversation.session import Speakers, UserOf
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.session import Speaker

_HOOK = "pre_model_hook"


class RememberingState(TypedDict):
    """The keys of the graph's state that the node reads and writes; missing ones are added.

    Attributes:
        messages: the conversation.
        memory_user: id of the user whose memory the thread's messages went to last.
        memory_folded: id of the thread's message that was folded last, as far as known.
    """

    messages: list[AnyMessage]
    memory_user: NotRequired[str]
    memory_folded: NotRequired[str]


class ConversationNode(RunnableCallable):
    """A node that remembers the `messages` of a graph, and keeps them short.

    Put it before the model call, where it returns `RemoveMessage`s for messages that leave the
    window, and once more after it, so that a turn is folded together with its reply. The model call
    adds `memory.prompt(user, about=messages)` to its prompt. The memory's text is in no state, and
    so in no checkpoint and no stream.

    As a `pre_model_hook` it also returns the messages for the model (`llm_input_messages`).
    LangGraph passes these through the state, and so through its streams.

    Args:
        memory: the memory of the users.
        user: function that returns the id of the user; None looks for `user_id` in the run's
            context, then in `configurable`. Without a user, the thread has a memory of its own.
        strict: whether a run without a user is an error instead.

    Examples:
        >>> from langgraph.graph import START, MessagesState, StateGraph
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory, ConversationNode
        >>> memory = ConversationMemory("openai:gpt-4o", store=InMemoryStore())
        >>> def reply(state, config):  # in its place, a model that gets notes and messages
        ...     notes = memory.prompt(config["configurable"]["user_id"], about=state["messages"])
        ...     return {"messages": [("ai", f"Noted {len(notes)} times.")]}
        >>> builder = StateGraph(MessagesState)
        >>> builder = builder.add_node("remember", ConversationNode(memory)).add_node(reply)
        >>> builder = builder.add_node("note", ConversationNode(memory))
        >>> builder = builder.add_edge(START, "remember").add_edge("remember", "reply")
        >>> graph = builder.add_edge("reply", "note").compile()
        >>> config = {"configurable": {"user_id": "ann", "thread_id": "monday"}}
        >>> done = graph.invoke({"messages": [("human", "My sister breeds goats.")]}, config)
        >>> memory.load("ann")
        'My sister breeds goats.'
    """

    def __init__(
        self,
        memory: ConversationMemory,
        *,
        user: UserOf | None = None,
        strict: bool = False,
    ) -> None:
        speakers = Speakers(user, strict=strict)

        async def aremember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known = state if isinstance(state, dict) else vars(state)
            speaker = speakers.of(runtime, config, known.get("memory_user"))
            before = known["messages"]
            now = mark_messages(before)
            talk = memory.talk(*speaker, runtime.store, config)
            update: dict[str, object] = {}
            if is_reply(now):
                stays = now
            else:
                update = await begin(memory, speaker, known, now, runtime.store, config)
                stays = await talk.shorten(now, last_folded(known, update))
            talk.note(stays, last_folded(known, update), ended=is_reply(now))
            if config.get("metadata", {}).get("langgraph_node") == _HOOK:
                told = await memory.aprompt(speaker.user, about=stays, store=runtime.store)
                update["llm_input_messages"] = [*told, *stays]
            return {**update, "messages": changes(before, stays)}

        def remember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            return wait_for(aremember(state, config, runtime))

        super().__init__(remember, aremember, name="remember", trace=False)
        self._remember = remember

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._remember(state, config, runtime)


async def begin(
    memory: ConversationMemory,
    speaker: Speaker,
    state: Mapping[str, Any],
    messages: Sequence[BaseMessage],
    store: BaseStore | None,
    config: RunnableConfig,
) -> dict[str, object]:
    """Begin a turn: the changes of the state's private keys.

    When another user talks in the thread now, what was said before is theirs who said it.
    """
    talk = memory.talk(*speaker, store, config)
    known = state.get("memory_user")
    if known:  # the thread is kept, and so are the ids of its messages
        talk.backlog.trust(talk.thread)
    await talk.begin(messages)
    update: dict[str, object] = {}
    last = talk.backlog.last(speaker.thread)
    if known and known != speaker.user:
        humans = [at for at, m in enumerate(messages) if isinstance(m, HumanMessage)]
        earlier = messages[: humans[-1]] if humans else messages
        before = memory.talk(AnonymousUser.restore(known), speaker.thread, store, config)
        before.note(earlier, state.get("memory_folded"), ended=True)
        last = str(earlier[-1].id) if earlier else last
    if known != speaker.user:
        update["memory_user"] = str(speaker.user)
    if last and last != state.get("memory_folded"):
        update["memory_folded"] = last
    return update


def last_folded(state: Mapping[str, Any], update: Mapping[str, Any]) -> str | None:
    """The id of the message of the thread that was folded last."""
    found: str | None = update.get("memory_folded") or state.get("memory_folded")
    return found


def changes(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages by which `add_messages` turns one conversation into the other."""
    stay = {message.id for message in after}
    old = {id(message) for message in before}
    gone = [RemoveMessage(id=str(m.id)) for m in before if m.id not in stay]
    return [*gone, *(message for message in after if id(message) not in old)]
