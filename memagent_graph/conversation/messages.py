"""A conversation as groups that belong together, and as lines that a reader can read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence


TOLD_AT = "told_at"
"""Key of a message's `additional_kwargs` for the time at which it was said (ISO 8601)."""


def marked(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, those that lack an id or the time at which they were said as copies with it."""
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return [_marked(message, now) for message in messages]


def _marked(message: BaseMessage, now: str) -> BaseMessage:
    changes: dict[str, object] = {}
    if not message.id:
        changes["id"] = str(uuid4())
    if isinstance(message, HumanMessage) and TOLD_AT not in message.additional_kwargs:
        changes["additional_kwargs"] = {**message.additional_kwargs, TOLD_AT: now}
    return message.model_copy(update=changes) if changes else message


def is_instruction(message: BaseMessage) -> bool:
    """Whether a message is the application's: a system prompt, or LangChain's own summary."""
    if isinstance(message, ChatMessage):
        return message.role in _PROMPTING
    written = message.additional_kwargs.get("lc_source")
    return isinstance(message, SystemMessage) or written == "summarization"


def groups(messages: Iterable[BaseMessage]) -> list[list[BaseMessage]]:
    """Messages that may only go together: one that calls tools with what the tools returned.

    Messages of the application are in no group.
    """
    found: list[list[BaseMessage]] = []
    calls: dict[str, list[BaseMessage]] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id in calls:
            calls[message.tool_call_id].append(message)
        elif not is_instruction(message):
            found.append([message])
            if isinstance(message, AIMessage):
                called = [*message.tool_calls, *message.invalid_tool_calls]
                calls |= {call["id"]: found[-1] for call in called if call["id"]}
    return found


def beyond(
    messages: Sequence[BaseMessage],
    *,
    window: int,
    tokens: int,
    count: Callable[[BaseMessage], int],
) -> list[BaseMessage]:
    """The messages to be folded: none while there are few, else all but the last half.

    What stays begins with a human message, has the last human message and the last group, and no
    group is split. System messages always stay.

    Args:
        messages: the conversation.
        window: most messages that stay, system messages not counted.
        tokens: most tokens that they may have.
        count: measures a message.
    """
    found = groups(messages)
    sizes = [sum(map(count, group)) for group in found]
    if sum(map(len, found)) <= window and sum(sizes) <= tokens:
        return []
    kept = len(found)
    left, room = max(1, window // 2), tokens // 2
    while kept and (
        kept == len(found) or (len(found[kept - 1]) <= left and sizes[kept - 1] <= room)
    ):
        kept -= 1
        left -= len(found[kept])
        room -= sizes[kept]
    humans = [at for at, group in enumerate(found) if isinstance(group[0], HumanMessage)]
    first = next((at for at in humans if at >= kept), None)
    stays = humans[-1] if first is None and humans else None
    gone = found[:kept] if first is None else found[:first]
    return [message for at, group in enumerate(gone) if at != stays for message in group]


def leaving(folding: Sequence[BaseMessage], done: Container[str]) -> list[BaseMessage]:
    """Return the first of some messages that are all `done` and end before a human message.

    Args:
        folding: the messages that are `beyond` the window; they end so.
        done: ids of messages that are folded.
    """
    found = groups(folding)
    ends = 0
    for at, group in enumerate(found):
        if isinstance(group[0], HumanMessage):
            ends = at
        if not all(str(message.id) in done for message in group):
            break
    else:
        ends = len(found)
    return [message for group in found[:ends] for message in group]


def after(messages: Sequence[BaseMessage], last: str | None) -> list[BaseMessage]:
    """Return the messages after the one with this id; all if it is not among them."""
    ids = [message.id for message in messages]
    return [*messages[ids.index(last) + 1 :]] if last in ids else [*messages]


def unfolded(
    messages: Sequence[BaseMessage], done: Sequence[str], *, whole: bool
) -> list[BaseMessage]:
    """Return the messages of a thread that were not folded.

    Args:
        messages: the messages, in order.
        done: ids of those that were folded.
        whole: whether `done` is complete. If not, messages before the first of them were folded,
            too.
    """
    ids = {*done}
    known = (at for at, message in enumerate(messages) if str(message.id) in ids)
    first = 0 if whole else next(known, 0)
    return [message for message in messages[first:] if str(message.id) not in ids]


def is_reply(messages: Sequence[BaseMessage]) -> bool:
    """Whether a conversation ends with a reply, which calls no tools."""
    last = messages[-1] if messages else None
    return isinstance(last, AIMessage) and not last.tool_calls


_PROMPTING = {"system", "developer"}
