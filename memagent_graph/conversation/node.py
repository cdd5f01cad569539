"""A chatbot's long-term memory as a node of its graph."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation

from memagent_graph.errors import ConfigurationError
from memagent_graph.prompts import remembered
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory

_log = logging.getLogger(__name__)


class ConversationNode(RunnableCallable):
    """A node that keeps the `messages` of a graph short, and its `memory` up to date.

    It returns `RemoveMessage`s for what was folded, and the memory's text under `memory`, if the
    state has such a key. It is also a `pre_model_hook`: the model is then told the memory and the
    messages that stay (`llm_input_messages`).

    The run's config names who talks: `{"configurable": {"user_id": ..., "thread_id": ...}}`.
    Without a user, the thread has a memory of its own.

    Args:
        memory: what to keep it in.

    Example:
        ```python
        builder.add_node("remember", ConversationNode(ConversationMemory()))
        builder.add_edge(START, "remember")
        ```
    """

    def __init__(self, memory: ConversationMemory) -> None:
        async def aremember(
            state: Any, config: RunnableConfig, runtime: Runtime[None]
        ) -> dict[str, object]:
            user, thread = speaker(config)
            before = state["messages"] if isinstance(state, dict) else state.messages
            stays = await memory.aobserve(
                before, user=user, thread=thread, store=runtime.store, config=config
            )
            text = await recalled(memory, user, runtime.store)
            if text is None:  # what was last known still holds
                known = state if isinstance(state, dict) else vars(state)
                text = known.get("memory") or ""
            told = [SystemMessage(remembered(text))] if text else []
            return {
                "messages": changes(before, stays),
                "memory": text,
                "llm_input_messages": [*told, *stays],
            }

        def remember(
            state: Any, config: RunnableConfig, runtime: Runtime[None]
        ) -> dict[str, object]:
            return wait_for(aremember(state, config, runtime))

        super().__init__(remember, aremember, name="remember", trace=False)


def changes(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What makes LangGraph's `add_messages` turn one conversation into the other."""
    stay = {message.id for message in after}
    old = {id(message) for message in before}
    gone = [RemoveMessage(id=str(m.id)) for m in before if m.id not in stay]
    return [*gone, *(message for message in after if id(message) not in old)]


def speaker(config: Mapping[str, Any]) -> tuple[str, str]:
    """The user and the thread of a run; a run without a user has a memory for its thread alone.

    Raises:
        ConfigurationError: The run's config names neither.
    """
    named = config.get("configurable", {})
    thread = str(named.get("thread_id") or "")
    user = str(named.get("user_id") or (thread and f"thread {thread}"))
    if not user:
        raise ConfigurationError(
            'Whose conversation is it? Invoke with {"configurable": {"user_id": "...", '
            '"thread_id": "..."}}.'
        )
    return user, thread


async def recalled(memory: ConversationMemory, user: str, store: BaseStore | None) -> str | None:
    """The memory of a user; None when the store is away, for a conversation must go on."""
    try:
        return await memory.aload(user, store=store)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a store raises
        _log.warning("The memory of a user could not be loaded: %s", error)
        return None
