"""Threads that a checkpointer keeps: catch up with all, find and delete those of a user."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.messages import by_owner, is_unmarked, stamp
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.thread import USER_KEY, AnonymousUser, KeptThread, messages_in
from memagent_graph.memory.stores import erase
from memagent_graph.sync import ask_saver, see_checkpoints, to_sync

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.session import ConversationSettings
    from memagent_graph.conversation.user_memory import ForgottenUser, UserMemory
    from memagent_graph.memory.items import UserId

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
    memory: ConversationSettings[Any],
    checkpointer: BaseCheckpointSaver[Any],
    *,
    store: BaseStore | None = None,
) -> CaughtUp:
    """Fold the messages in the newest checkpoint of each thread that were not folded yet.

    Threads are those of agents with `MemAgentMiddleware` and of graphs with `ConversationNode`,
    whose state names the user. Every checkpoint is examined. Threads may continue meanwhile. The
    memory has the model, the budgets and the namespace of the chatbot, and a store of its own or
    the one given.
    """
    newest: dict[str, CheckpointTuple] = {}
    users = defaultdict[str, set[str]](set)

    def see(one: CheckpointTuple) -> None:
        thread = str(one.config.get("configurable", {}).get("thread_id"))
        named = one.metadata.get(USER_KEY)
        if user := one.checkpoint["channel_values"].get("memory_user"):
            users[thread] |= {str(user), str(named or user)}
            if newest.get(thread, one).checkpoint["id"] <= one.checkpoint["id"]:
                newest[thread] = one

    await see_checkpoints(checkpointer, see)
    messages = failed = 0
    for thread, last in newest.items():
        try:
            messages += await _fold(memory, checkpointer, last, users[thread], store)
        except Exception as error:  # noqa: BLE001 - one thread's failure is not another's
            failed += 1
            _log.warning("Thread %r could not be folded: %s", thread, error)
    return CaughtUp(len(newest), messages, failed)


catch_up = to_sync(acatch_up)


async def _fold(
    memory: ConversationSettings[Any],
    checkpointer: BaseCheckpointSaver[Any],
    newest: CheckpointTuple,
    users: set[str],
    store: BaseStore | None,
) -> int:
    """Fold the messages in a thread's newest checkpoint, of those users whom the thread names."""
    thread = str(newest.config["configurable"]["thread_id"])
    last = newest.checkpoint["channel_values"]["memory_user"]
    talks = {user: Talk(memory, AnonymousUser.restore(user), thread, store) for user in users}
    talk = talks[last]
    marks: dict[str, Mapping[str, str]] = {}
    messages = talk.identify(await messages_in(checkpointer, newest) or [], ())
    bare = talk.record(message for message in messages if is_unmarked(message))
    for one in talks.values() if bare else ():
        marks |= await one.find_own(bare)
    left = {one for one in bare if one.id not in marks}
    guest = last if last.startswith(AnonymousUser.PREFIX) else ""
    at = newest.config["configurable"]["thread_id"], newest.checkpoint["id"]
    kept = KeptThread(checkpointer, *at, nested=False)
    marks |= await kept.find_marks(
        left, talk.record_all, lambda first: str(first.metadata.get(USER_KEY, guest))
    )
    folded = 0
    for owner, own in by_owner(stamp(messages, "", earlier=marks), last).items():
        if owner in users:  # a client can mark messages, too
            folded += await talks[owner].fold(own)
    return folded


class Threads(NamedTuple):
    """The threads of a user in a checkpointer.

    Attributes:
        own: ids of the threads that are theirs alone.
        shared: ids of threads in which others spoke as well. Nothing deletes them for you.
    """

    own: tuple[UserId, ...]
    shared: tuple[UserId, ...]


async def aforget(
    personal: UserMemory, *, by: str, checkpointer: BaseCheckpointSaver[Any] | None = None
) -> ForgottenUser:
    """Forget a user, and delete their threads if a checkpointer is given.

    The threads go first: if one cannot be deleted, the memory is still there and says which it was.
    """
    if checkpointer is None:
        return await personal.forget(by=by)
    found = await athreads_of(checkpointer, personal.user, await personal.threads())
    for thread in found.own:
        await ask_saver(checkpointer, "delete_thread", thread)
    kept = await erase(checkpointer)
    done = await personal.forget(by=by)
    left = " ".join(filter(None, (kept, done.left)))
    threads, deleted = (tuple(map(str, ids)) for ids in (found.shared, found.own))
    return done._replace(threads=threads, deleted=deleted, left=left)


async def athreads_of(
    checkpointer: BaseCheckpointSaver[Any], user: str, known: Collection[str] = ()
) -> Threads:
    """Find the threads of a user: those whose state names them in any checkpoint.

    Agents with `MemAgentMiddleware` and graphs with `ConversationNode` have such a state. Every
    checkpoint is examined. Those in `known` are theirs if no state names another.
    """
    named: dict[UserId, set[str]] = {}

    def note(found: CheckpointTuple) -> None:
        thread = found.config["configurable"]["thread_id"]
        name = found.checkpoint["channel_values"].get("memory_user")
        named.setdefault(thread, set()).update({name} if isinstance(name, str) and name else ())

    await see_checkpoints(checkpointer, note)
    theirs = [
        thread
        for thread in sorted(named, key=str)
        if user in named[thread] or (str(thread) in known and not named[thread])
    ]
    own = tuple(thread for thread in theirs if named[thread] <= {user})
    return Threads(own, tuple(thread for thread in theirs if thread not in own))
