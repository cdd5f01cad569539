"""A conversation as groups that belong together, and as lines that a reader can read."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import deque
from datetime import UTC, date, datetime, timedelta
from difflib import SequenceMatcher
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

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
from langchain_core.messages.utils import count_tokens_approximately

from memagent_graph.conversation.episodes import KeptMessage, Recorded
from memagent_graph.conversation.privacy import redact_nothing
from memagent_graph.models.completion import text_in

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from langchain_core.messages import MessageLikeRepresentation

    from memagent_graph.conversation.privacy import Redact
    from memagent_graph.text.chunks import Chunk

REMEMBER = "remember"
"""Key of a human message's `additional_kwargs`: with False, its turn is not remembered."""
SAID_AT = "told_at"
"""Key of a message's `additional_kwargs` for the time at which it was said; see `read_time`."""

_log = logging.getLogger(__name__)


def mark_messages(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, those that lack an id or the time at which they were said as copies with it."""
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return [_mark_message(message, now) for message in messages]


def _mark_message(message: BaseMessage, now: str) -> BaseMessage:
    changes: dict[str, object] = {}
    if not message.id:
        changes["id"] = str(uuid4())
    if isinstance(message, HumanMessage) and message.additional_kwargs.get(SAID_AT) is None:
        changes["additional_kwargs"] = {**message.additional_kwargs, SAID_AT: now}
    return message.model_copy(update=changes) if changes else message


def exclude(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages, those of the current turn marked as not to be remembered.

    These are the human messages after the last reply. All that follows such a message, up to the
    next human message, is not remembered either.
    """
    replies = [at for at, message in enumerate(messages) if isinstance(message, AIMessage)]
    first = replies[-1] + 1 if replies else 0
    return [
        _exclude(message) if at >= first and isinstance(message, HumanMessage) else message
        for at, message in enumerate(messages)
    ]


def spread_exclusion(messages: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Return messages, those after one that is not to be remembered marked likewise."""
    found: list[BaseMessage] = []
    excluded = False
    for message in messages:
        if isinstance(message, HumanMessage):
            excluded = is_excluded(message)
        found.append(_exclude(message) if excluded else message)
    return found


def is_excluded(message: BaseMessage) -> bool:
    """Whether a message is not to be remembered."""
    return message.additional_kwargs.get(REMEMBER) is False


def _exclude(message: BaseMessage) -> BaseMessage:
    if is_excluded(message):
        return message
    return message.model_copy(
        update={"additional_kwargs": {**message.additional_kwargs, REMEMBER: False}}
    )


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


def first_leaving(folding: Sequence[BaseMessage], done: Container[str]) -> list[BaseMessage]:
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


def view(messages: Sequence[BaseMessage], left: str | None) -> list[BaseMessage]:
    """Return the messages of a thread that the model still sees.

    Args:
        messages: the whole thread.
        left: id of the first message of the last group that left the view; see `find_left`.
    """
    at = next((at for at in reversed(range(len(messages))) if messages[at].id == left), None)
    if left is None or at is None:
        return [*messages]
    later = groups(messages[at:])[1:]
    kept = {id(m) for group in later if not isinstance(group[0], ToolMessage) for m in group}
    human = next((m for m in reversed(messages) if _is_human(m)), None)
    return [m for m in messages if id(m) in kept or m is human or is_instruction(m)]


def _is_human(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage) and not is_instruction(message)


def find_left(messages: Sequence[BaseMessage], stays: Sequence[BaseMessage]) -> str | None:
    """Return the id of the first message of the last group that is not among those that stay."""
    ids = {message.id for message in stays}
    gone = (group[0].id for group in reversed(groups(messages)) if group[0].id not in ids)
    return next(gone, None)


def after(messages: Sequence[BaseMessage], last: str | None) -> list[BaseMessage]:
    """Return the messages after the one with this id; all if it is not among them."""
    ids = [message.id for message in messages]
    return [*messages[ids.index(last) + 1 :]] if last in ids else [*messages]


_UNSURE: Mapping[str, bool] = {}


class Alignment(NamedTuple):
    """The result of `align`: messages under the ids that they were recorded with.

    Attributes:
        known: all messages, in their order.
        new: those that were not recorded.
        edited: those that say something else than what was recorded.
        resent: ids of those that were recognized by what they say, not by their ids.
    """

    known: list[BaseMessage]
    new: list[BaseMessage]
    edited: list[BaseMessage]
    resent: set[str]


def align(
    messages: Sequence[BaseMessage],
    recorded: Sequence[Recorded],
    *,
    whole: bool = True,
    sure: Mapping[str, bool] = _UNSURE,
    redact: Redact = redact_nothing,
) -> Alignment:
    """Recognize the messages of a thread, also from a client that sends them without ids.

    A message is known by its id or, if no id is known, by its place among the others, its role and
    its content. One that says something else at the place of a recorded one replaces it. If no
    reply is among the messages, they must be of the recorded day, too: what is said again on
    another day is new.

    Args:
        messages: the messages, with ids; without those of the application.
        recorded: those that were recorded, in order.
        whole: whether `recorded` is complete. If not, messages before the first of them are known.
        sure: ids of messages that are known by their ids alone, with whether they are new if they
            were not recorded.
        redact: function that a text passes through before its digest is taken.
    """
    given = [record_message(message, redact) for message in messages]
    places = _find_places(messages, given, recorded, sure)
    first = next((at for at, place in enumerate(places) if place is not None), 0)
    found = Alignment([], [], [], set())
    for at, (message, one, place) in enumerate(zip(messages, given, places, strict=True)):
        if place is None:
            found.known.append(message)
            if sure.get(one.id, whole or at >= first):
                found.new.append(message)
            continue
        before = recorded[place]
        same = message if before.id == one.id else message.model_copy(update={"id": before.id})
        found.known.append(same)
        if before.digest and before.digest != one.digest:
            found.edited.append(same)
        elif same is not message:
            found.resent.add(before.id)
    return found


def record_message(message: BaseMessage, redact: Redact = redact_nothing) -> Recorded:
    """Return what `align` recognizes a message by."""
    role, text = _role(message), _describe(message)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    said = [message.name, redact(text) if text else "", *(call["name"] for call in calls)]
    said += (redact(str(call["args"])) for call in calls)
    time = message.additional_kwargs.get(SAID_AT) if role == USER else None
    digest = sha256(repr(said).encode(errors="replace")).hexdigest()[:12]
    return Recorded(str(message.id), f"{role[:1]}{digest}", (read_time(time) or "")[:10])


def _find_places(
    messages: Sequence[BaseMessage],
    given: Sequence[Recorded],
    recorded: Sequence[Recorded],
    sure: Container[str],
) -> list[int | None]:
    """Return the place of each message among the recorded ones; None for a new message."""
    numbers = {one.id: at for at, one in enumerate(recorded)}
    places = [numbers.get(one.id) for one in given]
    _find_repeated(given, recorded, places)
    unsure = {one.id for one in given if one.id not in sure}
    if not recorded or not unsure or places != [None] * len(places):
        return places  # the client keeps ids
    dated = not any(isinstance(message, AIMessage) for message in messages)
    now = [_key(one, dated=dated) if one.id in unsure else (one.id, "") for one in given]
    old = [_key(one, dated=dated) for one in recorded]
    equal = {at: at for at in range(len(old))}
    if now[: len(old)] != old:
        # Backwards, so that of two equal places the later one is chosen.
        matcher = SequenceMatcher(None, now[::-1], old[::-1], autojunk=False)
        equal = {
            len(now) - 1 - at - index: len(old) - 1 - place - index
            for at, place, size in matcher.get_matching_blocks()
            for index in range(size)
        }
    if not _is_resent(equal, given, len(recorded)):
        return places
    places = [equal.get(at, place) for at, place in enumerate(places)]
    used = {*places}
    for at, one in enumerate(given):
        before = places[at - 1] if at else -1 if equal.get(1) == 1 else None
        place = len(recorded) if before is None else before + 1
        new_ones = [*takewhile(lambda known: known is None, places[at:])]
        if 0 < len(new_ones) <= _MOST_EDITED and one.id in unsure and place not in used:
            roles = [known.digest[:1] for known in recorded[place : place + 1]]
            if roles == [one.digest[:1]]:
                places[at] = place
                used.add(place)
    return places


def _find_repeated(
    given: Sequence[Recorded], recorded: Sequence[Recorded], places: list[int | None]
) -> None:
    """Note the places of messages that a client sent again to a thread that has them.

    A checkpointed thread gives new ids to a history without ids, and has it twice. Unknown messages
    after known ones are such a history if they begin as the thread did, with a reply, and a user
    continues.
    """
    numbers = {one.id: at for at, one in enumerate(recorded)}
    at = next((at for at, place in enumerate(places) if place is not None), len(places))
    while at < len(places):
        if places[at] is not None:
            at += 1
            continue
        end = next((e for e in range(at, len(places)) if places[e] is not None), len(places))
        same: list[Recorded] = []
        for old in (given[:at], recorded):
            pairs = zip(given[at:end], old, strict=False)
            alike = takewhile(lambda pair: pair[0].digest == pair[1].digest, pairs)
            same = max(same, [known for _, known in alike], key=len)
        then = given[at + len(same) : at + len(same) + 1]
        if len(same) > 1 and then and then[0].digest[:1] == USER[:1]:
            places[at : at + len(same)] = [numbers.get(one.id) for one in same]
        at = end


def _is_resent(equal: Mapping[int, int], given: Sequence[Recorded], recorded: int) -> bool:
    """Whether equal messages show that a history was sent again, from its start or to its end."""
    whole = equal.get(0) == 0 and len(equal) > 1
    ends = not {recorded - 1, recorded - 2}.isdisjoint(equal.values())
    # Replies such as "Noted." are found anywhere.
    certain = any(at == place or given[at].digest[:1] == USER[:1] for at, place in equal.items())
    return certain and (whole or ends)


_MOST_EDITED = 2
"""Messages in a row that are edits of others at their places: one of a user, and its reply."""


def _key(one: Recorded, *, dated: bool) -> tuple[str, str]:
    return one.digest, one.day if dated else ""


def count_tokens(message: BaseMessage) -> int:
    """Return an estimate of the tokens of a message.

    An attachment counts the same whatever its size: models do not read its bytes as text.
    """
    if isinstance(message.content, str):
        return count_tokens_approximately([message])
    texts, attached = list[str](), 0
    for part in message.content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") not in _CALLING:
            leaves = [*_leaves(part)]
            said = [leaf for leaf in leaves if isinstance(leaf, str) and not _DATA.match(leaf)]
            texts += said
            attached += len(said) < len(leaves) or _kind(part) in _ATTACHED
    plain = message.model_copy(update={"content": "".join(texts)})
    return count_tokens_approximately([plain]) + attached * _ATTACHMENT_TOKENS


def _leaves(part: object) -> Iterator[object]:
    """All strings and bytes within a part of a message, except for its type."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key != "type":
                yield from _leaves(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _leaves(value)
    elif isinstance(part, str | bytes | bytearray | memoryview):
        yield part


_ATTACHMENT_TOKENS = 85
"""LangChain's figure for an image."""
_ATTACHED = {"image", "file", "audio", "video", "document", "media"}
_CALLING = {"tool_use", "tool_call", "function_call"}
"""Types of parts that stand in `tool_calls` as well."""
_DATA = re.compile(r"data:[\w.+/-]*[;,]|[A-Za-z0-9+/=_\r\n-]{256}")
"""Beginning of a data URL, or of base64."""


def is_reply(messages: Sequence[BaseMessage]) -> bool:
    """Whether a conversation ends with a reply, which calls no tools."""
    last = messages[-1] if messages else None
    return isinstance(last, AIMessage) and not last.tool_calls


_PROMPTING = {"system", "developer"}


if TYPE_CHECKING:
    About = str | BaseMessage | Sequence[MessageLikeRepresentation]

USER, ASSISTANT, TOOL = "user", "assistant", "tool "

LINE = re.compile(r"(?m)^\[(?P<at>(?P<day>\d{4}-\d\d-\d\d)[^\]\n]*)\] (?P<speaker>[^:\n]+): ")
"""Beginning of each message in `rendered`; its further lines are indented."""


def render_messages(messages: Iterable[BaseMessage], redact: Redact = redact_nothing) -> str:
    """The conversation as text: `[2026-11-21T08:30+00:00] user: I moved to Berlin.` and so on."""
    return "".join(text for _, _, text in render(messages, redact))


def render(
    messages: Iterable[BaseMessage], redact: Redact = redact_nothing
) -> Iterator[tuple[BaseMessage, str, str]]:
    """Each message, when it was said, and its text, as in `rendered`.

    Tools that were called and what they returned have lines of their own. Pictures, sound and
    files are named by their type. What a model thought aloud is left out, and so are messages of
    the application.

    Args:
        messages: the conversation.
        redact: function that each text, tool argument and speaker's name passes through.
    """
    for message, time, speaker, said in _list_spoken(messages, redact):
        # Indented, a line of somebody's text cannot pass for the beginning of another message.
        yield message, time, f"[{time}] {speaker}: " + "\n  ".join(said.splitlines()) + "\n"


def word_for_word(
    messages: Iterable[BaseMessage], thread: str, redact: Redact = redact_nothing
) -> list[KeptMessage]:
    """Return the texts of people and the assistant, without calls and results of tools.

    Args:
        messages: the conversation, with ids.
        thread: its id.
        redact: function that each text and speaker's name passes through.
    """
    return [
        KeptMessage(str(message.id), thread, time, speaker, said)
        for message, time, speaker, said in _list_spoken(messages, redact)
        if not speaker.startswith(TOOL)
    ]


def find_current(about: About) -> tuple[str, list[BaseMessage]]:
    """Return the text of the last human message, and the messages of the conversation.

    Args:
        about: a text, a message, or a conversation.
    """
    if isinstance(about, str):
        return about, []
    messages = convert_to_messages([about] if isinstance(about, BaseMessage) else about)
    humans = [m for m in messages if _role(m) == USER and not is_instruction(m)]
    return (_describe(humans[-1]) if humans else ""), messages


def _list_spoken(
    messages: Iterable[BaseMessage], redact: Redact
) -> Iterator[tuple[BaseMessage, str, str, str]]:
    """Each message with when it was said, by whom, and what."""
    time = datetime.now(UTC).isoformat(timespec="minutes")
    for message in messages:
        time = _time_of(message) or time
        for speaker, said in () if is_instruction(message) else _text_of(message, redact):
            yield message, time, speaker, said


def _time_of(message: BaseMessage) -> str | None:
    time = message.additional_kwargs.get(SAID_AT)
    if time is None:
        return None
    found = read_time(time)
    if found is None:
        _warn_of_time(repr(time)[:40])
    return found


@lru_cache(1 << 10)
def _warn_of_time(time: str) -> None:
    _log.warning(
        "The time %s of a message cannot be read, and the message is dated by the one before it, "
        "or today. Give told_at as ISO 8601, as a datetime, or as seconds since 1970.",
        time,
    )


def read_time(time: object) -> str | None:
    """Return a time as ISO 8601 in the time zone it was given in; None if it cannot be read.

    Args:
        time: a text in any format of ISO 8601, a datetime, a date, or seconds since 1970
            (milliseconds if the number is above 10**11).
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
_PARTIAL = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)|-?(?P<day>\d{3}))?(?P<rest>T.*)?", re.IGNORECASE
)
"""A year, a month, or a day by its number in the year, which `fromisoformat` does not read."""
_LATE = re.compile(r"(?<=[T ])24(?::?00){0,2}(?:[.,]0+)?(?=$|[Z+-])", re.IGNORECASE)
_LEAP = re.compile(r"(?<=[T ]\d\d:\d\d:)60|(?<=[T ]\d{4})60", re.IGNORECASE)
"""Midnight at a day's end, and a leap second."""
_FULL = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")


@lru_cache(1 << 12)
def _read_iso(time: str) -> str:
    if found := _PARTIAL.fullmatch(time):
        first = date(int(found["year"]), int(found["month"] or 1), 1)
        if found["day"]:
            year = first.year
            first += timedelta(int(found["day"]) - 1)
            if first.year != year or not int(found["day"]):
                raise ValueError(time)
        if found["rest"] and not found["day"]:
            raise ValueError(time)
        time = first.isoformat() + (found["rest"] or "")
    plain, late = _LATE.subn("00:00", _LEAP.sub("59", time.upper()))
    try:
        return date.fromisoformat(plain).isoformat()
    except ValueError:
        at = datetime.fromisoformat(plain) + timedelta(late)
    return time if _FULL.match(time) and time == plain else _format_time(at)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds" if at.second else "minutes")


@lru_cache(1 << 14)
def instant(at: str) -> float:
    """Return a time as seconds since 1970, minus infinity if there is none.

    A time without a zone counts as UTC, and a day as its beginning.
    """
    try:
        found = datetime.fromisoformat(at)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


def is_later(one: str, other: str) -> bool:
    """Whether a time is later than another; if one is only a day, their days decide."""
    if min(len(one), len(other)) <= len("2026-03-05"):
        return one[:10] > other[:10]
    return instant(one) > instant(other)


def _text_of(message: BaseMessage, redact: Redact) -> Iterable[tuple[str, str]]:
    text = _describe(message)
    text = redact(text) if text else ""
    role = _role(message)
    if role == TOOL:
        failed = " failed" if getattr(message, "status", "") == "error" else ""
        yield f"{TOOL}{_name(message.name or 'result')}{failed}", text
        return
    speaker = _name(redact(message.name) if message.name else role)
    if text:
        yield speaker, text
    if isinstance(message, AIMessage):
        for call in [*message.tool_calls, *message.invalid_tool_calls]:
            arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
            called = f"{TOOL}{_name(call['name'] or 'unnamed')} called by {speaker}"
            yield called, redact(arguments)


def _role(message: BaseMessage) -> str:
    """Return the speaker of a message without a name: only a person's message is the user's."""
    if isinstance(message, ToolMessage | FunctionMessage):
        return TOOL
    if isinstance(message, ChatMessage):
        return _ROLES.get(message.role, message.role)
    return ASSISTANT if isinstance(message, AIMessage) else USER


_ROLES = {"human": USER, "ai": ASSISTANT, "tool": TOOL, "function": TOOL}
"""Other names of roles in a `ChatMessage`."""


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
    kind = _kind(block)
    if kind in _UNSPOKEN:
        return ""
    inner = block.get("file")
    given = {**inner, **block} if isinstance(inner, dict) else block
    detail = next((_name(str(given[key])) for key in _DETAILS if given.get(key)), "")
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


def _kind(block: Mapping[str, object]) -> str:
    return str(block.get("type") or "content").removeprefix("input_").removesuffix("_url")


_UNSPOKEN = {"text", "reasoning", "thinking", "redacted_thinking", *_CALLING}
_DETAILS = ("filename", "name", "title", "mime_type", "media_type", "format")


_LOOK = 1 << 14
"""Code points that are looked at first for the beginning of a message; most are shorter."""


class ChunkMessage(NamedTuple):
    """A message in a chunk: where it begins and ends, when it was said, and whose it is."""

    start: int
    end: int
    at: str
    speaker: str

    @property
    def day(self) -> str:
        """The date, without the time."""
        return self.at[:10]


def find_messages(chunk: Chunk) -> list[ChunkMessage]:
    """The messages in a chunk, with the one that goes on in it."""
    first_line = chunk.start == 0 or chunk.source.read(chunk.start - 1, 1) == "\n"
    begins = [m for m in LINE.finditer(chunk.text) if m.start() > 0 or first_line]
    starts = [(match.start(), match) for match in begins]
    if not starts or starts[0][0] > 0:
        before = find_continued(chunk)
        starts[:0] = [(0, before)] if before else []
    ends = [start for start, _ in starts[1:]] + [len(chunk.text)]
    return [
        ChunkMessage(chunk.start + start, chunk.start + end, match["at"], match["speaker"])
        for (start, match), end in zip(starts, ends, strict=True)
    ]


def number_messages(chunk: Chunk, said: Sequence[ChunkMessage]) -> str:
    """A chunk with the number of each message before it."""
    parts = []
    for number, one in enumerate(said, 1):
        text = chunk.text[one.start - chunk.start : one.end - chunk.start]
        goes = "" if LINE.match(text) else f"[{one.day}] {one.speaker}, going on: "
        parts.append(f"[{number}] {goes}{text}")
    return "".join(parts) or chunk.text


def find_continued(chunk: Chunk) -> re.Match[str] | None:
    """The beginning of the message that goes on in a chunk; it is looked for from the end."""
    size = _LOOK
    while True:
        start = max(0, chunk.start - size)
        text = chunk.source.read(start, chunk.start - start)
        # A window that begins within a line could take what is said there for a beginning.
        lines = 0 if start == 0 else text.find("\n") + 1 or len(text)
        found = deque(LINE.finditer(text, lines), maxlen=1)
        if found or start == 0:
            return found[0] if found else None
        size *= 2
