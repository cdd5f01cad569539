"""Keep private what is private: streams, what is forgotten, and the threads of a user."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from langgraph.constants import TAG_NOSTREAM

from memagent_graph.conversation.built_in import read_remarks, topics, write_remarks
from memagent_graph.conversation.proposal import change_proposals, propose_edit
from memagent_graph.errors import ConfigurationError, MemoryConflictError
from memagent_graph.evidence.statements import drop_statements, statements
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.forget import erase
from memagent_graph.sync import see_checkpoints

if TYPE_CHECKING:
    from collections.abc import Collection

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from memagent_graph.conversation.user_memory import ForgottenUser, UserMemory

RUN_NAME = "remember"
"""Name, in traces, of the model calls that fold messages."""


def for_itself(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config for calls whose replies must not reach a run's callbacks.

    Callbacks of the model itself, and tracers that the environment turns on, are still called.
    """
    configurable = (config or {}).get("configurable", {})
    return {
        "run_name": RUN_NAME,
        "tags": [TAG_NOSTREAM],
        "callbacks": [],
        "configurable": {k: v for k, v in configurable.items() if not k.startswith("__")},
    }


class Threads(NamedTuple):
    """The threads of a person in a checkpointer.

    Attributes:
        own: ids of the threads that are theirs alone.
        shared: ids of threads in which others spoke as well. Nothing deletes them for you.
    """

    own: tuple[str, ...]
    shared: tuple[str, ...]


async def aforget(
    personal: UserMemory,
    *,
    by: str,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
) -> ForgottenUser:
    """Forget a person, and delete their threads if a checkpointer is given.

    The threads go first: if one cannot be deleted, the memory is still there and says which it was.

    Args:
        personal: memory of the person.
        by: author of the change.
        checkpointer: the checkpointer of the threads.
    """
    if checkpointer is None:
        return await personal.forget(by=by)
    found = await athreads_of(checkpointer, personal.user, await personal.threads())
    for thread in found.own:
        try:
            await checkpointer.adelete_thread(thread)
        except NotImplementedError:
            await asyncio.to_thread(checkpointer.delete_thread, thread)
    kept = await erase(checkpointer)
    done = await personal.forget(by=by)
    left = " ".join(filter(None, (kept, done.left)))
    return done._replace(threads=found.shared, deleted=found.own, left=left)


async def athreads_of(
    checkpointer: BaseCheckpointSaver[Any], user: str, known: Collection[str] = ()
) -> Threads:
    """Find the threads of a person: those whose state names them in any checkpoint.

    Agents with `MemAgentMiddleware` and graphs with `ConversationNode` have such a state. Every
    checkpoint is examined.

    Args:
        checkpointer: the checkpointer of the threads.
        user: id of the person.
        known: ids of threads that are theirs if no state names another.
    """
    named: dict[str, set[str]] = {}
    await see_checkpoints(checkpointer, partial(_note, named))
    theirs = sorted(
        thread
        for thread, users in named.items()
        if user in users or (thread in known and not users)
    )
    own = tuple(thread for thread in theirs if named[thread] <= {user})
    return Threads(own, tuple(thread for thread in theirs if thread not in own))


def _note(named: dict[str, set[str]], found: CheckpointTuple) -> None:
    """Note whom a checkpoint of a thread names."""
    thread = str(found.config.get("configurable", {}).get("thread_id"))
    users = named.setdefault(thread, set())
    user = found.checkpoint["channel_values"].get("memory_user")
    if isinstance(user, str) and user:
        users.add(user)


Form = Literal["text", "profile", "facts"]
"""The form of a memory."""


async def find_about(personal: UserMemory, subject: str, form: Form) -> list[str]:
    """Return the statements about a subject in the notes; arguments as of `drop_about`."""
    head, wanted = await personal.head(), _find_topics(subject, form)
    return [] if head is None else _drop(head.text, wanted, form, None)[1]


async def drop_about(
    personal: UserMemory,
    subject: str,
    form: Form,
    *,
    by: str,
    propose: bool = False,
    known: Collection[str] | None = None,
    right: str = "",
) -> list[str]:
    """Delete the statements about a subject; see `ConversationMemory.aforget_about`.

    Versions that had one go as well, unless it is corrected (`right` has what stays) or the change
    of the notes is only proposed. Only statements in `known` go, if given.
    """
    wanted = _find_topics(subject, form)
    forgets = not (propose or right)

    def goes(text: str) -> bool:
        return forgets and bool(_drop(text, wanted, form, known)[1])

    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        head = await personal.head()
        text, gone = ("", []) if head is None else _drop(head.text, wanted, form, known)
        with suppress(MemoryConflictError):
            if head is not None and gone and propose:
                await propose_edit(personal, head, text, by=by)
            elif head is not None and (gone or any(goes(item.line) for item in head.told)):
                await personal.edit(text, by=by, before=head.id, goes=goes)
            if forgets:
                await personal.drop_versions(goes)
            break
    else:
        message = f"The memory of {personal.user!r} kept changing: try again."
        raise MemoryConflictError(message)
    await change_proposals(personal, lambda one: one.without(subjects=[wanted]))
    stay = {statement.text for statement in statements(right)}
    said = await personal.episodes.drop_about(wanted, lambda text: text not in stay)
    return [*dict.fromkeys([*gone, *said])]


def _find_topics(subject: str, form: Form) -> frozenset[str]:
    """Return the words of a subject that is to be forgotten."""
    wanted = topics(subject)
    if not wanted or form == "profile":
        message = f"Name the subject to forget by specific words; {subject!r} has none."
        if wanted:
            message = "A profile has no statements: edit its fields, or forget the user."
        raise ConfigurationError(message)
    return wanted


def _drop(
    text: str, subject: frozenset[str], form: Form, known: Collection[str] | None
) -> tuple[str, list[str]]:
    """Return notes without the statements, or facts, about a subject, and these."""
    if form == "text":
        may = bool if known is None else known.__contains__
        left, gone = drop_statements(text, subject.issubset, may)
        return (write_remarks([*read_remarks(left)]), gone) if gone else (text, [])
    from memagent_graph.facts.record import drop_facts

    gone = [line for line in drop_facts(text, subject)[1] if known is None or line in known]
    return "\n".join(line for line in text.splitlines() if line not in gone), gone
