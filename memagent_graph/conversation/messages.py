"""A conversation as groups that belong together, and as lines that a reader can read."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import lru_cache
from hashlib import sha256
from inspect import iscoroutinefunction
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)

from memagent_graph.conversation.episodes import KeepFilter, KeptMessage, Recorded
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.statements import instant
from memagent_graph.models.reply import text_in
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import tzinfo

    from langchain_core.messages import MessageLikeRepresentation

    from memagent_graph.text.chunks import Chunk

    Given = str | MessageLikeRepresentation | Sequence[MessageLikeRepresentation]

REMEMBER = "remember"
"""Key of a human message's `additional_kwargs`: with False, its turn is not remembered; with
`"context"`, as for a text of another agent, it is not what the user says."""
SAID_AT = "told_at"
"""Key of a message's `additional_kwargs` for the time at which it was said; see `read_time`."""

SEEN = "memory"
"""Key of a human message's `additional_kwargs` for whose it is and when it was seen first."""

_log = logging.getLogger(__name__)

Redact = Callable[[str], str]
"""Function from the text of a message, or its speaker's name, to the text that may be kept."""

_WRONG = (
    "redact must be a function of a text that returns a text, at once: a coroutine function or "
    "another result cannot be used."
)


def check_redaction(redact: Redact | None) -> Redact:
    """A redaction that raises `ConfigurationError` rather than let something through."""
    if redact is None:
        return str
    if iscoroutinefunction(redact):
        raise ConfigurationError(_WRONG)

    def redact_checked(text: str) -> str:
        found: object = redact(text)
        if not isinstance(found, str):
            raise ConfigurationError(_WRONG)
        return found

    return redact_checked


def as_messages(given: Given) -> list[BaseMessage]:
    """Return messages as LangChain's; raises `ConfigurationError` if some are none."""
    one = isinstance(given, str | dict | BaseMessage) or (
        isinstance(given, tuple) and [*map(type, given)] == [str, str] and given[0] in _SPEAKING
    )
    try:
        listed: Any = [given] if one else given
        if any(isinstance(message, str) for message in listed) and not one:
            raise TypeError("a list of texts")  # noqa: TRY301 - the same error as LangChain's
        return convert_to_messages(listed)
    except (TypeError, ValueError, NotImplementedError, AttributeError, KeyError) as error:
        message = (
            f"Messages cannot be taken from this: {error}. Pass a list of messages, such as "
            '[("human", "I moved to Bern.")], or one message, or its text.'
        )
        raise ConfigurationError(message) from error


def identify(
    messages: Sequence[BaseMessage],
    thread: str,
    recorded: Sequence[Recorded] = (),
    redact: Redact = str,
) -> list[BaseMessage]:
    """Return messages, those without an id with one that the same message gets again.

    It is the digest of the message and of the id before it, so that a history that is sent again
    has the ids that it had. Of messages at the beginning without ids, those that were recorded
    keep their ids: as far as they equal the record from its beginning, or else the longest end of
    the record with which the messages begin. All others are new, and follow what was recorded. So
    is a message that says something else than another one before it with the same id.
    """
    first = {message.id: message for message in reversed(messages)}
    messages = [*messages]
    for at, message in enumerate(messages):
        other = first[message.id] if message.id else message
        if other is not message and record_message(other) != record_message(message):
            messages[at] = message.model_copy(update={"id": None})
    digests = [record_message(m, redact).digest if not m.id else "" for m in messages]
    now = [*takewhile(bool, digests)]
    old = [one.digest for one in recorded]
    same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(now, old, strict=False))])
    known = recorded[:same]
    if not same:
        ends = (end for end in range(min(len(now), len(old)), 0, -1) if old[-end:] == now[:end])
        known = recorded[len(old) - next(ends, 0) :]
    last = recorded[-1].id if recorded and not known else thread
    ids = [message.id or one.id for message, one in zip(messages, known, strict=False)]
    for message, digest in zip(messages[len(known) :], digests[len(known) :], strict=True):
        last = ids[-1] if ids else last
        ids.append(message.id or sha256(f"{last}\0{digest}".encode()).hexdigest()[:24])
    return [
        message if message.id else message.model_copy(update={"id": key})
        for message, key in zip(messages, ids, strict=True)
    ]


def stamp(
    messages: Iterable[BaseMessage],
    user: str,
    zone: tzinfo | None = None,
    earlier: Mapping[str, Mapping[str, str]] | None = None,
) -> list[BaseMessage]:
    """Return messages, those of users that are seen for the first time marked with user and time.

    The user is "" if the run may not remember them. `earlier` has the marks of those, by id, that
    came with another run.
    """
    mark = {"user": str(user), "at": datetime.now(zone or UTC).isoformat()}

    def add_mark(message: BaseMessage) -> BaseMessage:
        own = {**mark, **(earlier or {}).get(str(message.id), {})}
        return message.model_copy(
            update={"additional_kwargs": {**message.additional_kwargs, SEEN: own}}
        )

    return [add_mark(message) if is_unmarked(message) else message for message in messages]


def is_unmarked(message: BaseMessage) -> bool:
    """Whether a message is a user's, and does not say whose and when it was seen first."""
    return isinstance(message, HumanMessage) and SEEN not in message.additional_kwargs


def by_owner(messages: Iterable[BaseMessage], user: str) -> dict[str, list[BaseMessage]]:
    """Return messages by the user whose they are; those without a mark are `user`'s.

    What follows a user's message belongs to it: the reply, calls of tools and their results. What
    is not to be remembered is among those of `user`, so marked: it is known when it comes again.
    """
    found: dict[str, list[BaseMessage]] = {}
    owner, excluded = str(user), False
    for message in messages:
        if is_instruction(message):
            continue
        if isinstance(message, HumanMessage):
            owner = str(_seen(message).get("user", user))
            excluded = message.additional_kwargs.get(REMEMBER) is False or not owner
        if excluded and not is_excluded(message):
            marked = {**message.additional_kwargs, REMEMBER: False}
            message = message.model_copy(update={"additional_kwargs": marked})  # noqa: PLW2901
        found.setdefault(str(user) if excluded else owner, []).append(message)
    return found


def is_excluded(message: BaseMessage) -> bool:
    """Whether a message is not to be remembered."""
    return message.additional_kwargs.get(REMEMBER) is False


def last_owner(messages: Sequence[BaseMessage]) -> str:
    """Return the user whose message is the last one of a user; "" if it is not marked."""
    humans = (message for message in reversed(messages) if is_human(message))
    return str(_seen(next(humans, HumanMessage(""))).get("user", ""))


def seen_at(message: BaseMessage) -> str:
    """Return when a message of a user was seen first (ISO 8601, UTC); "" if not known."""
    found = read_time(_seen(message).get("at"))
    return datetime.fromtimestamp(instant(found), UTC).isoformat() if found else ""


def _seen(message: BaseMessage) -> Mapping[str, str]:
    """Return who said a message, and when it was seen first, as far as it is marked."""
    mark = message.additional_kwargs.get(SEEN)
    return mark if isinstance(mark, dict) else {}


def is_instruction(message: BaseMessage) -> bool:
    """Whether a message is the application's: a system prompt, or LangChain's own summary."""
    if isinstance(message, ChatMessage):
        return message.role in _PROMPTING
    return isinstance(message, SystemMessage) or is_summary(message)


def is_summary(message: BaseMessage) -> bool:
    """Whether a message is LangChain's summary of messages that it took out of the thread."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def is_human(message: BaseMessage) -> bool:
    """Whether a message is a user's."""
    return isinstance(message, HumanMessage) and not is_instruction(message)


def record_message(message: BaseMessage, redact: Redact = str) -> Recorded:
    """Return the id of a message, and a digest of what it says."""
    role, text = _role(message), _describe(message)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    said = [message.name, redact(text) if text else "", *(call["name"] for call in calls)]
    said += (redact(str(call["args"])) for call in calls)
    digest = sha256(repr(said).encode(errors="replace")).hexdigest()[:12]
    return Recorded(str(message.id), f"{role[:1]}{digest}")


CALLING = {"tool_use", "tool_call", "function_call"}
"""Types of parts that stand in `tool_calls` as well."""


def is_reply(messages: Sequence[BaseMessage]) -> bool:
    """Whether a conversation ends with a reply, which calls no tools."""
    last = messages[-1] if messages else None
    return isinstance(last, AIMessage) and not last.tool_calls


_PROMPTING = {"system", "developer"}
USER, ASSISTANT, TOOL, CONTEXT = "user", "assistant", "tool", "context"
"""Who speaks, by a message's type; context is what a message of a user only passes on."""
_ROLES = {
    "human": USER,
    "user": USER,
    "ai": ASSISTANT,
    "assistant": ASSISTANT,
    "tool": TOOL,
    "function": TOOL,
}
"""The roles of a `ChatMessage`; any other names a user."""
_SPEAKING = {*_ROLES, "system", "developer"}


class Line(NamedTuple):
    """A message, a call of a tool, or its result, as a line of a conversation's text.

    `start`, `words` (after time and speaker) and `end` are offsets in code points.
    """

    start: int
    words: int
    end: int
    at: str
    role: str
    speaker: str
    message: str


class ConversationSource(TextSource):
    """The text of a conversation: `[2026-11-21T08:30+00:00] user: I moved to Berlin.` and so on.

    Tools that were called and what they returned have lines of their own. Pictures, sound and
    files are named by their type. What a model thought aloud is left out, and so are messages of
    the application. A further line of a message is indented. `replaced` has what messages said
    before they were edited or taken back.
    """

    def __init__(
        self,
        messages: Iterable[BaseMessage],
        thread: str = "text",
        redact: Redact = str,
        replaced: Mapping[str, str] | None = None,
    ) -> None:
        self.lines: list[Line] = []
        parts, start, replaced = list[str](), 0, replaced or {}
        spoken = [*_list_spoken(messages, redact)]
        for key in replaced.keys() - {str(message.id) for message, *_ in spoken}:
            parts.append(f"(Taken back: {' '.join(replaced[key].split())!r})\n")
            start += len(parts[-1])
        for message, time, role, speaker, said in spoken:
            key, head = str(message.id), f"[{time}] {speaker}: "
            if key in replaced:
                head += f"(instead of: {' '.join(replaced[key].split())!r}) "
            parts.append(head + "\n  ".join(said.splitlines()) + "\n")
            words, end = start + len(head), start + len(parts[-1])
            self.lines.append(Line(start, words, end, time, role, speaker, key))
            start = end
        super().__init__("".join(parts), thread)


def lines_of(chunk: Chunk) -> list[Line]:
    """Return the lines that are in a chunk of a conversation, also those that only end in it."""
    lines: Sequence[Line] = getattr(chunk.source, "lines", ())
    first = bisect_right(lines, chunk.start, key=lambda line: line.end)
    return [*takewhile(lambda line: line.start < chunk.end, lines[first:])]


def number_messages(chunk: Chunk, said: Sequence[Line]) -> str:
    """A chunk with the number of each message before it."""
    parts = []
    for number, one in enumerate(said, 1):
        text = chunk.text[max(0, one.start - chunk.start) : one.end - chunk.start]
        goes = "" if one.start >= chunk.start else f"[{one.at[:10]}] {one.speaker}, going on: "
        parts.append(f"[{number}] {goes}{text}")
    return "".join(parts) or chunk.text


def word_for_word(
    messages: Iterable[BaseMessage], thread: str, kept: KeepFilter
) -> list[KeptMessage]:
    """Return what is kept of the texts of users and the assistant, of some of them nothing."""
    return [
        KeptMessage(str(message.id), thread, time, speaker, kept.drop(said))
        for message, time, role, speaker, said in _list_spoken(messages, kept.redact)
        if role != TOOL
    ]


def as_message(kept: KeptMessage) -> BaseMessage:
    """Return a kept message as one to be folded."""
    told = {SAID_AT: kept.at} if kept.at else {}
    told |= {REMEMBER: CONTEXT} if kept.speaker == CONTEXT else {}
    if kept.speaker == ASSISTANT:
        return AIMessage(kept.text, id=kept.id, additional_kwargs=told)
    name = None if kept.speaker in (USER, CONTEXT) else kept.speaker
    return HumanMessage(kept.text, id=kept.id, name=name, additional_kwargs=told)


def find_current(about: Given) -> tuple[str, list[BaseMessage]]:
    """Return the text of the last human message, and the messages of the conversation."""
    if isinstance(about, str):
        return about, []
    messages = as_messages(about)
    humans = [m for m in messages if _role(m) == USER and not is_instruction(m)]
    return (_describe(humans[-1]) if humans else ""), messages


def _list_spoken(
    messages: Iterable[BaseMessage], redact: Redact
) -> Iterator[tuple[BaseMessage, str, str, str, str]]:
    """Each message with when it was said, in which role, by whom, and what."""
    time = datetime.now(UTC).isoformat(timespec="minutes")
    for message in messages:
        time = _time_of(message) or time
        for role, speaker, said in () if is_instruction(message) else _text_of(message, redact):
            yield message, time, role, speaker, said


def _time_of(message: BaseMessage) -> str | None:
    """Return when a message was said, or else when it was seen first; None if not known."""
    time = message.additional_kwargs.get(SAID_AT)
    if time is None:
        seen = read_time(_seen(message).get("at"))
        return seen and datetime.fromisoformat(seen).isoformat(timespec="minutes")
    found = read_time(time)
    if found is None:
        _warn_of_time(
            f"{time!r:.40}",
            "cannot be read, and the message is dated by the one before it, or today. Give told_at "
            "as ISO 8601, as a datetime, or as seconds since 1970",
        )
    elif instant(found) > datetime.now(UTC).timestamp() + _ZONES:
        _warn_of_time(f"{time!r:.40}", "is in the future: it is taken as now")
        return datetime.now(UTC).isoformat(timespec="minutes")
    return found


_ZONES = 14 * 3600
"""Seconds by which a time without a zone can be ahead of UTC."""


@lru_cache(1 << 10)
def _warn_of_time(time: str, why: str) -> None:
    _log.warning("The time %s of a message %s.", time, why)


def read_time(time: object) -> str | None:
    """Return a time as ISO 8601 in the time zone it was given in; None if it cannot be read.

    A number is seconds since 1970, or milliseconds above 10**11.
    """
    try:
        if isinstance(time, str):
            return _read_iso(time.strip())
        if isinstance(time, datetime):
            return _format_time(time)
        if isinstance(time, date):
            return time.isoformat()
        if isinstance(time, int | float) and not isinstance(time, bool):
            seconds = time / 1000 if abs(time) > _MILLISECONDS else time
            return _format_time(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        pass
    return None


_MILLISECONDS = 10**11
"""Seconds since 1970 until the year 5138; a larger number counts milliseconds."""
_MONTH = re.compile(r"\d{4}(?:-\d\d)?")
"""A year or a month, which `fromisoformat` does not read."""
_FULL = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")


@lru_cache(1 << 12)
def _read_iso(time: str) -> str:
    if _MONTH.fullmatch(time):
        time = f"{time}-01-01"[:10]
    with suppress(ValueError):
        return date.fromisoformat(time).isoformat()
    time = time.upper()
    at = datetime.fromisoformat(time)
    return time if _FULL.match(time) else _format_time(at)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds" if at.second else "minutes")


def _text_of(message: BaseMessage, redact: Redact) -> Iterable[tuple[str, str, str]]:
    role, text = _role(message), _describe(message)
    text = redact(text) if text else ""
    if role == TOOL:
        failed = " failed" if getattr(message, "status", "") == "error" else ""
        yield TOOL, f"{TOOL} {_name(message.name or 'result')}{failed}", text
        return
    if text:
        yield role, _speaker(message, role, redact), text
    if isinstance(message, AIMessage):
        for call in [*message.tool_calls, *message.invalid_tool_calls]:
            arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
            called = f"{TOOL} {_name(call['name'] or 'unnamed')} called by {ASSISTANT}"
            yield TOOL, called, redact(arguments)


def _speaker(message: BaseMessage, role: str, redact: Redact) -> str:
    """Return the name of a speaker, which says of a user that they are one if it does not."""
    if role == ASSISTANT:
        return ASSISTANT
    name = _name(redact(message.name)) if message.name else ""
    if isinstance(message, ChatMessage) and not name:
        name = "" if message.role in _ROLES else _name(message.role)
    return f"{name} ({role})" if name.partition(" ")[0] in (ASSISTANT, TOOL) else name or role


def _role(message: BaseMessage) -> str:
    """Return who speaks, by the type of the message."""
    if isinstance(message, ToolMessage | FunctionMessage):
        return TOOL
    if isinstance(message, AIMessage):
        return ASSISTANT
    role = _ROLES.get(message.role, USER) if isinstance(message, ChatMessage) else USER
    passed_on = role == USER and message.additional_kwargs.get(REMEMBER) == CONTEXT
    return CONTEXT if passed_on else role


def _name(name: str) -> str:
    return re.sub(r"[\s:\]\[]+", " ", name).strip() or "unnamed"


def _describe(message: BaseMessage) -> str:
    """Text as it is, everything else by its type."""
    if isinstance(message.content, str):
        return message.content.strip()
    parts = (_part(block) for block in message.content)
    return "\n".join(filter(None, parts)).strip()


def _part(block: str | Mapping[str, object]) -> str:
    text = text_in(block)
    if isinstance(block, str) or text is not None:
        return text or ""
    kind = str(block.get("type") or "content").removeprefix("input_").removesuffix("_url")
    if kind in _UNSPOKEN:
        return ""
    inner = block.get("file")
    given = {**inner, **block} if isinstance(inner, dict) else block
    detail = next((_name(str(given[key])) for key in _DETAILS if given.get(key)), "")
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


_UNSPOKEN = {"text", "reasoning", "thinking", "redacted_thinking", "tool_result", *CALLING}
_DETAILS = ("filename", "name", "title", "mime_type", "media_type", "format")
