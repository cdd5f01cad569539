"""Split a conversation into a question and a document to read, with the texts of its files."""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64decode
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemAgentError
from memagent_graph.pictures import without_numbers
from memagent_graph.text.files import open_source
from memagent_graph.text.source import warnings_of
from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from memagent_graph.text.source import Source

Message = dict[str, Any]

FILES = frozenset({"file", "input_file", "document"})
"""Types of parts that are files."""
PICTURE = "image_url"
"""Type of parts that are pictures."""
_KNOWN = FILES | {PICTURE, "text"}
_LONGEST_NAME = 200
"""Characters of a file's name that are shown."""

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


class FileText(dict[str, Any]):
    """A part of a message with the text of a file, or of a picture, which has a digest."""

    def __init__(self, text: str, warnings: Sequence[str], digest: str | None = None) -> None:
        super().__init__(type="text", text=text)
        self.warnings, self.digest = warnings, digest


class Unread(dict[str, Any]):
    """A file or a picture that was not read, as the client sent it; the model may know it."""

    def __init__(self, part: dict[str, Any], reason: str) -> None:
        super().__init__(part)
        self.warnings = [reason]


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
    """Split a conversation, of which a memory has those of the prefixes that are `known`.

    Messages of up to `kept_tokens` after the question are kept unchanged. A short turn is all
    question if it may be the `whole` turn, even with several parts.

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
        _refuse_files(message)
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
    and is short enough; both where neither has a question mark ("Sum this up: ..."). If it may be
    the `whole` turn, it is, where that is short enough, or else the longest piece rather than the
    shortest.
    """
    text = text.strip()
    short = len(text) <= _LONGEST_LOOK and count(text) <= budget
    if whole and short:
        return text, ""
    tails, heads = list[int](), list[int]()
    for gap in _GAPS:
        found = [match.end() for match in gap.finditer(text, max(0, len(text) - _LONGEST_LOOK))]
        tails += [cut for cut in found if cut < len(text)][-1:]
        match = gap.search(text, 0, _LONGEST_LOOK)
        heads += [match.end()] if match and match.end() < len(text) else []
    # The shortest piece first, or else the longest:
    tails = sorted((cut for cut in tails if count(text[cut:]) <= budget // 2), reverse=not whole)
    heads = sorted((cut for cut in heads if count(text[:cut]) <= budget // 2), reverse=whole)
    pieces = [(text[cut:], text[:cut]) for cut in tails]
    pieces += [(text[:cut], text[cut:]) for cut in heads]
    for piece, rest in pieces:
        if _ASKS.search(piece):
            return piece.strip(), rest.strip()
    if short:
        return text, ""
    head, tail = heads[0] if heads else 0, tails[0] if tails else len(text)
    question = f"{text[:head].strip()}\n{text[tail:].strip()}".strip()
    if not question:
        message = "No question was found: end the message with it, in a paragraph of its own."
        raise Refusal(400, message, param="messages", code="question")
    return question, text[head:tail].strip()


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
        yield _line(f"{speaker} calls {_name(called.get('name'))}", str(called.get("arguments")))


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
        parts = parts_of(message)
        seen = [part.digest for part in parts if isinstance(part, FileText) and part.digest]
        record = json.dumps([prefix, message, *seen], sort_keys=True)
        prefix = sha256(record.encode()).hexdigest()[:32]
        yield prefix


def has_files(messages: Iterable[Message]) -> bool:
    """Whether a message has a file."""
    return any(part.get("type") in FILES for message in messages for part in parts_of(message))


def read_pictures(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with a mark of each picture, and the words in it, in its place."""
    number = itertools.count(1)
    return change_parts(
        messages,
        lambda part: _read_picture(part, next(number)) if part.get("type") == PICTURE else part,
    )


def change_parts(
    messages: Iterable[Message], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[Message]:
    """Return the messages with another part in place of each."""
    return [
        {**message, "content": [*map(change, parts)]} if (parts := parts_of(message)) else message
        for message in messages
    ]


def file_warnings(messages: Iterable[Message]) -> Iterator[str]:
    """Yield what was not read of files and pictures, or may be wrong with their text."""
    for message in messages:
        for part in parts_of(message):
            if isinstance(part, FileText | Unread):
                yield from part.warnings
            elif message.get("role") == "user" and part.get("type") not in _KNOWN:
                kind = str(part.get("type"))[:_LONGEST_NAME]
                yield f"a part of type {kind!r} was not read: send text, a file or a picture."


def _refuse_files(message: Message) -> None:
    """Refuse a message with a file that was not read: its text would be missing."""
    for part in parts_of(message):
        if isinstance(part, Unread) and part.get("type") in FILES:
            raise Refusal(400, part.warnings[0], param="messages", code="unsupported_file")


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message; none if its content is text."""
    content = message.get("content")
    return content if isinstance(content, list) else []


_TYPES = {
    "application/vnd.ms-outlook": ".msg",
    "application/x-ipynb+json": ".ipynb",
    "application/xhtml+xml": ".xhtml",
    "message/rfc822": ".eml",
    "text/html": ".html",
}
"""Suffixes by media type; documents of other types are known by their content."""


def _open(data: str, name: str, suffix: str = "") -> Source:
    """Open a document in base64, or in a `data:` URL, which may name its type."""
    head, _, encoded = data.rpartition(",")
    if not PurePosixPath(name).suffix:
        name += _TYPES.get(head.removeprefix("data:").partition(";")[0].strip().lower(), suffix)
    return open_source(b64decode("".join(encoded.split()), validate=True), name=name)


def read_file(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with the text of a file in place of one with the file."""
    if part.get("type") not in FILES:
        return part
    file = part["file"] if isinstance(part.get("file"), dict) else part
    data, name = file.get("file_data"), file.get("filename") or file.get("file_id") or "file"
    name = str(name)[:_LONGEST_NAME]
    if not isinstance(data, str):
        only = "only files with their content can be read. Send it in base64, as file_data."
        return Unread(part, f"{name}: {only}")
    try:
        source = _open(data, name)
    except MemAgentError as error:
        return Unread(part, str(error))
    except ValueError:
        return Unread(part, f"{name}: file_data is not base64. Encode the bytes of the file.")
    warnings, said = warnings_of(source), source.read(0, source.length)
    if getattr(source, "pictures", ()):
        said = without_numbers(said)  # those of the conversation have numbers, and of other files
    noted = "".join(f"[{line}]\n" for line in warnings)
    return FileText(f"===== {source.name} =====\n{noted}\n{said}", warnings)


def _read_picture(part: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a picture as text, under its number in the conversation."""
    given = part.get(PICTURE)
    url = str(given.get("url") if isinstance(given, dict) else given)
    name = f"picture {number}"
    if not url.startswith("data:"):
        reason = f"{name} was not read, since it is only linked: send it as a data: URL."
        return Unread(part, reason)
    try:
        source: Any = _open(url, name, ".png")
        (picture,) = source.pictures
    except MemAgentError as error:
        return Unread(part, f"{name} was not read: {error}")
    except (ValueError, AttributeError):
        return Unread(part, f"{name} was not read: it is no picture in base64.")
    mark = replace(picture, number=number).mark
    text = source.read(0, source.length).replace(picture.mark, mark, 1)
    return FileText(text, warnings_of(source), source.digest)
