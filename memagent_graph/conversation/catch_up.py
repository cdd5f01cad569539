"""Folds what a killed process left unfolded, from the threads that a checkpointer keeps."""

from __future__ import annotations

import logging
from functools import partial
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
    threads: dict[str, _KnownThread] = {}
    await see_checkpoints(checkpointer, partial(_keep, threads))
    messages = failed = 0
    for thread, kept in threads.items():
        try:
            messages += await _fold(memory, thread, kept, store)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not another's
            failed += 1
            _log.warning("Thread %r could not be folded: %s", thread, error)
    return CaughtUp(len(threads), messages, failed)


catch_up = to_sync(acatch_up)


async def _fold(
    memory: ConversationMemory, thread: str, kept: _KnownThread, store: BaseStore | None
) -> int:
    newest, users = kept
    messages = identify(messages_in(newest) or [], thread)
    last = newest.checkpoint["channel_values"]["memory_user"]
    folded = 0
    for owner, said in by_owner(messages, last).items():
        if owner in users:  # a client can mark messages, too
            folded += await Talk(memory, AnonymousUser.restore(owner), thread, store).fold(said)
    return folded


class _KnownThread(NamedTuple):
    """The newest checkpoint of a thread that names a user, and all users that one names."""

    newest: CheckpointTuple
    users: set[str]


def _keep(found: dict[str, _KnownThread], one: CheckpointTuple) -> None:
    thread = str(one.config.get("configurable", {}).get("thread_id"))
    user = one.checkpoint["channel_values"].get("memory_user")
    if not user:
        return
    best = found.get(thread, _KnownThread(one, set()))
    newer = best.newest if best.newest.checkpoint["id"] > one.checkpoint["id"] else one
    found[thread] = _KnownThread(newer, best.users | {str(user)})
