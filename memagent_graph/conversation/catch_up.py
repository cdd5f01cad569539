"""Folds what a killed process left unfolded, from the threads that a checkpointer keeps."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.messages import by_owner, identify
from memagent_graph.conversation.session import Talk, messages_in
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.sync import see_checkpoints, to_sync

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
    newest: dict[str, CheckpointTuple] = {}
    users = defaultdict[str, set[str]](set)

    def see(one: CheckpointTuple) -> None:
        thread = str(one.config.get("configurable", {}).get("thread_id"))
        if user := one.checkpoint["channel_values"].get("memory_user"):
            users[thread].add(str(user))
            if newest.get(thread, one).checkpoint["id"] <= one.checkpoint["id"]:
                newest[thread] = one

    await see_checkpoints(checkpointer, see)
    messages = failed = 0
    for thread, last in newest.items():
        try:
            messages += await _fold(memory, last, users[thread], store)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not another's
            failed += 1
            _log.warning("Thread %r could not be folded: %s", thread, error)
    return CaughtUp(len(newest), messages, failed)


catch_up = to_sync(acatch_up)


async def _fold(
    memory: ConversationMemory, newest: CheckpointTuple, users: set[str], store: BaseStore | None
) -> int:
    """Fold the messages in a thread's newest checkpoint, of those users whom the thread names."""
    thread = str(newest.config["configurable"]["thread_id"])
    messages = identify(messages_in(newest) or [], thread)
    last = newest.checkpoint["channel_values"]["memory_user"]
    folded = 0
    for owner, said in by_owner(messages, last).items():
        if owner in users:  # a client can mark messages, too
            folded += await Talk(memory, AnonymousUser.restore(owner), thread, store).fold(said)
    return folded
