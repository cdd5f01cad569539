"""Split a conversation into a question and a document to read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memagent_http.refusals import Refusal
from memagent_openai_server.files import FileText, parts_of, refuse_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

Message = dict[str, Any]

SYSTEM = ("system", "developer")
"""Roles of an application's own messages."""
_GAPS = (
    re.compile(r"\n[ \t\r]*\n\s*"),
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?])\s+|(?<=[。！？])"),
)
"""Between paragraphs, lines and sentences."""
_ASKS = re.compile(r"[?？؟]")
_LONGEST_LOOK = 20_000
"""Code points at either end of a turn in which its question is searched."""


@dataclass(frozen=True)
class Asked:
    """A request, split into its parts.

    Attributes:
        system: the system messages.
        question: the question in the user's last turn.
        document: the text to read, which is not in the memory yet.
        kept: messages after that turn, which the model is shown unchanged.
        prefix: digest of all messages that the memory has after reading the document.
    """

    system: str
    question: str
    document: str
    kept: Sequence[Message]
    prefix: str


def split_messages(
    messages: Sequence[Message],
    *,
    known: AbstractSet[str],
    count: Callable[[str], int],
    question_tokens: int,
    kept_tokens: int,
    whole: bool,
) -> Asked:
    """Split a conversation.

    Args:
        messages: the conversation as the client sent it.
        known: prefixes of conversations that the memory has already.
        count: counts the tokens of a text.
        question_tokens: longest question, in tokens.
        kept_tokens: most tokens of messages after the question that are kept unchanged.
        whole: whether a short turn is all question, even if it has several parts.

    Raises:
        Refusal: There is no question of a user, or a message to read has a file.
    """
    system = "\n\n".join(text_of(message) for message in messages if message["role"] in SYSTEM)
    body = [message for message in messages if message["role"] not in SYSTEM]
    last = next((at for at in reversed(range(len(body))) if body[at]["role"] == "user"), None)
    if last is None or not text_of(body[last], files=False).strip():
        raise Refusal(400, "The user's last message is empty: add text.", param="messages")
    known_by = list(prefixes(body))
    read = next((at for at in reversed(range(len(body) + 1)) if known_by[at] in known), 0)
    for message in messages if not read else body[read:]:
        refuse_files(message)
    question, content = split(text_of(body[last], files=False), question_tokens, count, whole=whole)
    content = _with_files(body[last], content)
    kept = _kept(body, max(read, last + 1), count, kept_tokens)
    end = len(body) - len(kept)
    parts = []
    if read and body[read - 1]["role"] == "user" and (read - 1 < last or end > read):
        # Of the last turn read, the content is in the memory, but not the question.
        text = text_of(body[read - 1], files=False)
        parts.append(_line("user", split(text, question_tokens, count, whole=whole)[0]))
    parts += [line for message in body[read:last] for line in lines(message)]
    if read <= last:
        parts += [content] if content else []
        if end > last + 1:
            parts.append(_line("user", question))
    parts += [line for message in body[max(read, last + 1) : end] for line in lines(message)]
    return Asked(system, question, "\n\n".join(parts), kept, known_by[end])


def split(
    text: str, budget: int, count: Callable[[str], int], *, whole: bool = False
) -> tuple[str, str]:
    """The question in a turn of the user, and the rest of it.

    The question is the last paragraph, line or sentence, or else the first, that asks something
    and is short enough; both where neither has a question mark ("Sum this up: ...").

    Args:
        text: the turn.
        budget: tokens of a question.
        count: tokens of a text.
        whole: all of it is the question if it is short enough; else that is the longest piece
            rather than the shortest.
    """
    text = text.strip()
    short = len(text) <= _LONGEST_LOOK and count(text) <= budget
    if whole and short:
        return text, ""
    fits = budget // 2
    tails = [cut for gap in _GAPS if (cut := _tail(text, gap)) and count(text[cut:]) <= fits]
    heads = [cut for gap in _GAPS if (cut := _head(text, gap)) and count(text[:cut]) <= fits]
    tails.sort(reverse=not whole)  # the shortest piece first, or else the longest
    heads.sort(reverse=whole)
    for cut in tails:
        if _ASKS.search(text[cut:]):
            return text[cut:].strip(), text[:cut].strip()
    for cut in heads:
        if _ASKS.search(text[:cut]):
            return text[:cut].strip(), text[cut:].strip()
    if short:
        return text, ""
    head, tail = heads[0] if heads else 0, tails[0] if tails else len(text)
    question = f"{text[:head].strip()}\n{text[tail:].strip()}".strip()
    if not question:
        message = "No question was found: end the message with it, in a paragraph of its own."
        raise Refusal(400, message, param="messages", code="question")
    return question, text[head:tail].strip()


def _tail(text: str, gap: re.Pattern[str]) -> int | None:
    start = max(0, len(text) - _LONGEST_LOOK)
    found = [match.end() for match in gap.finditer(text, start) if match.end() < len(text)]
    return found[-1] if found else None


def _head(text: str, gap: re.Pattern[str]) -> int | None:
    match = gap.search(text, 0, _LONGEST_LOOK)
    return match.end() if match and match.end() < len(text) else None


def text_of(message: Message, *, files: bool = True) -> str:
    """The text of a message, or without that of its files; pictures and sound by their type."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    shown = content if files else [part for part in content if not isinstance(part, FileText)]
    return "\n\n".join(filter(None, map(_part, shown)))


def _with_files(message: Message, left: str) -> str:
    """Return what is left of the text of a message, with the texts of its files in their places."""
    parts, at, found = parts_of(message), 0, list[str]()
    start = text_of(message, files=False).find(left)
    for part in parts:
        if isinstance(part, FileText):
            found.append(part["text"])
        elif text := _part(part):
            found.append(text[max(start - at, 0) : max(start + len(left) - at, 0)])
            at += len(text) + len("\n\n")
    return "\n\n".join(piece for piece in found if piece.strip()) if parts else left


def _part(part: dict[str, Any]) -> str:
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            return str(part[name])
    return f"[{str(part.get('type') or 'content').removesuffix('_url')}]"


def lines(message: Message) -> Iterable[str]:
    """A message as text to read, with the tools that it calls."""
    role = message["role"]
    name = message.get("name")
    speaker = f"{role} {_name(name)}" if isinstance(name, str) else role
    if text := text_of(message).strip():
        yield _line(speaker, text)
    for call in message.get("tool_calls") or ():
        called = call.get("function")
        called = called if isinstance(called, dict) else call
        arguments = called.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, default=str)
        yield _line(f"{speaker} calls {_name(called.get('name'))}", arguments)


def _line(speaker: str, text: str) -> str:
    # Indented, so that no line of a text looks like the beginning of another message.
    indent = "\n  "
    return f"{speaker}: " + indent.join(text.splitlines())


def _name(name: object) -> str:
    return re.sub(r"[\s:]+", " ", str(name)).strip()[:100] or "unnamed"


def _kept(
    body: Sequence[Message], first: int, count: Callable[[str], int], budget: int
) -> Sequence[Message]:
    """The newest complete groups (a call with its results) from `first` on that fit."""
    start = end = len(body)
    while start > first:
        start -= 1
        if body[start]["role"] in ("tool", "function"):
            continue
        budget -= count("\n".join(line for message in body[start:end] for line in lines(message)))
        if budget < 0:
            return body[end:]
        end = start
    return body[end:]


def prefixes(body: Iterable[Message]) -> Iterable[str]:
    """Yield digests of no message, the first one, the first two, and so on."""
    prefix = ""
    yield prefix
    for message in body:
        record = json.dumps([prefix, _named(message)], sort_keys=True)
        prefix = sha256(record.encode()).hexdigest()[:32]
        yield prefix


def _named(value: Any) -> Any:
    """A message with the digests of its pictures."""
    if isinstance(value, FileText) and value.source is not None:
        shown = [one.digest for one in value.source.pictures]
        return {"text": value["text"], "pictures": shown}
    if isinstance(value, dict):
        return {name: _named(inner) for name, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list) else value
