"""Folds what a killed process left unfolded, from the threads that a checkpointer keeps."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.messages import (
    after,
    is_instruction,
    mark_messages,
    spread_exclusion,
)
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.sync import see_checkpoints, wait_for

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory

_log = logging.getLogger(__name__)


class CaughtUp(NamedTuple):
    """The result of catching up with a checkpointer.

    Attributes:
        threads: number of users' threads.
        messages: number of messages that were folded now.
        failed: number of threads that could not be folded; the log says why.
    """

    threads: int
    messages: int
    failed: int


async def acatch_up(
    memory: ConversationMemory,
    checkpointer: BaseCheckpointSaver[Any],
    *,
    store: BaseStore | None = None,
) -> CaughtUp:
    """Fold the messages in the newest checkpoint of each thread that were not folded yet.

    Threads are those of agents with `MemAgentMiddleware` and of graphs with `ConversationNode`,
    whose state names the user. Every checkpoint is examined. Threads may continue meanwhile.

    Args:
        memory: a memory with the model, the budgets and the namespace of the chatbot.
        checkpointer: the checkpointer of the threads.
        store: the store of the memories, if `memory` has no store of its own.
    """
    threads = await _newest(checkpointer)
    messages = failed = 0
    for thread, values in threads.items():
        try:
            messages += await _fold(memory, thread, values, store)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not another's
            failed += 1
            _log.warning("Thread %r could not be folded: %s", thread, error)
    return CaughtUp(len(threads), messages, failed)


def catch_up(
    memory: ConversationMemory,
    checkpointer: BaseCheckpointSaver[Any],
    *,
    store: BaseStore | None = None,
) -> CaughtUp:
    """Do what `acatch_up` does, from synchronous code."""
    return wait_for(acatch_up(memory, checkpointer, store=store))


async def _fold(
    memory: ConversationMemory, thread: str, values: dict[str, Any], store: BaseStore | None
) -> int:
    known = mark_messages(values.get("messages") or [])
    known = spread_exclusion(known)
    said = [m for m in after(known, values.get("memory_folded")) if not is_instruction(m)]
    user = AnonymousUser.restore(values["memory_user"])
    return await memory.talk(user, thread, store, None).fold(
        said, {str(message.id): True for message in said}
    )


async def _newest(checkpointer: BaseCheckpointSaver[Any]) -> dict[str, dict[str, Any]]:
    """The state of each thread that names a user, from its newest checkpoint."""
    newest: dict[str, CheckpointTuple] = {}
    await see_checkpoints(checkpointer, partial(_keep, newest))
    return {thread: found.checkpoint["channel_values"] for thread, found in newest.items()}


def _keep(newest: dict[str, CheckpointTuple], found: CheckpointTuple) -> None:
    thread = str(found.config.get("configurable", {}).get("thread_id"))
    best = newest.get(thread)
    if found.checkpoint["channel_values"].get("memory_user") and (
        best is None or best.checkpoint["id"] < found.checkpoint["id"]
    ):
        newest[thread] = found
