"""Read the files and pictures in a conversation: each becomes text of its message."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from memagent_graph.errors import MemAgentError, SourceError
from memagent_graph.pictures.picture import MARK, numbers_in, without_numbers
from memagent_graph.pictures.sight import MOST_AGAIN, Sight, within
from memagent_graph.text.files import open_source
from memagent_graph.text.formats import suffix_of_type
from memagent_graph.text.source import TextSource, warnings_of
from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from langchain_core.language_models import BaseChatModel

    from memagent_graph.pictures.picture import Picture
    from memagent_graph.pictures.sight import Pictured
    from memagent_graph.text.source import Source

Message = dict[str, Any]

FILES = frozenset({"file", "input_file", "document"})
"""Types of parts that are files."""
PICTURE = "image_url"
"""Type of parts that are pictures."""
_KNOWN = FILES | {PICTURE, "text"}
_LONGEST_NAME = 200
"""Characters of a file's name that are shown."""


class FileText(dict[str, Any]):
    """A part of a message with the text of a file.

    Attributes:
        warnings: what was not read of the file, or may be wrong with its text.
        document: the file as a document, if it has pictures.
        source: the same, once its pictures have numbers of the conversation; None before.
    """

    warnings: Sequence[str] = ()
    document: Pictured | None = None
    source: Pictured | None = None


class Unread(dict[str, Any]):
    """A file or a picture that was not read, as the client sent it; the model may know it.

    Attributes:
        reason: why it was not read.
    """

    def __init__(self, part: dict[str, Any], reason: str) -> None:
        super().__init__(part)
        self.reason = reason


def has_files(messages: Iterable[Message]) -> bool:
    """Whether a message has a file."""
    return any(part.get("type") in FILES for message in messages for part in parts_of(message))


def read_files(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with the text of each file in its place."""
    return _change_parts(messages, lambda part: [_read(part)])


def _change_parts(
    messages: Iterable[Message], change: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]
) -> list[Message]:
    """Return the messages with others in place of each part."""
    return [
        {**message, "content": [one for part in parts for one in change(part)]}
        if (parts := parts_of(message))
        else message
        for message in messages
    ]


def without_pictures(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without the data of pictures, which costs no tokens by its length."""
    return _change_parts(messages, lambda part: [{} if part.get("type") == PICTURE else part])


def read_pictures(messages: Iterable[Message], *, in_files: bool) -> list[Message]:
    """Return the messages with the mark of each picture, and the words in it, in its place.

    Pictures are numbered through the conversation, so that one has the same number in each turn.

    Args:
        messages: the messages.
        in_files: whether the pictures in files are to be seen as well.
    """
    number = 0

    def read(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        nonlocal number
        if part.get("type") == PICTURE:
            number += 1
            yield _look(part, number)
        elif in_files and isinstance(part, FileText) and part.document is not None:
            yield _number(part, part.document, number)
            number += len(part.document.pictures)
        else:
            yield part

    return _change_parts(messages, read)


def show_pictures(messages: Iterable[Message], tokens: int, model: BaseChatModel) -> list[Message]:
    """Return the messages with the pictures of each file behind its text, as parts.

    Args:
        messages: the messages, as `read_files` returns them.
        tokens: what all pictures may cost.
        model: the model, which has a price for each.
    """
    messages = [*messages]
    files = [part for message in messages for part in parts_of(message)]
    documents = [part.document for part in files if isinstance(part, FileText) and part.document]
    found = [Sight(picture, document) for document in documents for picture in document.pictures]
    shown: dict[int, list[Sight]] = {}
    for one in within(found, tokens, model):
        shown.setdefault(id(one.source), []).append(one)

    def show(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield part
        document = part.document if isinstance(part, FileText) else None
        for one in shown.get(id(document), ()):
            yield from _to_parts(one, without_numbers(one.picture.mark))

    return _change_parts(messages, show)


def show_referred(
    said: str, seen: Iterable[Sight], tokens: int, model: BaseChatModel
) -> list[dict[str, Any]]:
    """Return the pictures that a text refers to, as parts.

    Args:
        said: the text.
        seen: the pictures of the conversation.
        tokens: what all pictures may cost.
        model: the model, which has a price for each.
    """
    known = {one.picture.number: one for one in seen}
    found = [known[number] for number in numbers_in(said) if number in known]
    room = within(found[:MOST_AGAIN], tokens, model)
    return [part for one in room for part in _to_parts(one, one.picture.mark)]


def _to_parts(one: Sight, mark: str) -> Iterator[dict[str, Any]]:
    """A picture as parts of a message, after its mark."""
    yield {"type": "text", "text": mark}
    try:
        media_type, encoded = one.source.load_picture(one.picture)
    except (SourceError, OSError):
        yield {"type": "text", "text": "(This picture cannot be shown any more.)"}
        return
    yield {"type": PICTURE, PICTURE: {"url": f"data:{media_type};base64,{encoded}"}}


def sights_in(messages: Iterable[Message]) -> list[Sight]:
    """Return the pictures of messages that were read, each with its document."""
    parts = [part for message in messages for part in parts_of(message)]
    sources = [part.source for part in parts if isinstance(part, FileText) and part.source]
    return [Sight(picture, source) for source in sources for picture in source.pictures]


class PicturedConversation(TextSource):
    """A conversation to read, with the pictures in it.

    Args:
        text: its text, with the marks of the pictures.
        name: its name in output.
        seen: its pictures.
    """

    def __init__(self, text: str, name: str, seen: Sequence[Sight]) -> None:
        super().__init__(text, name)
        starts: dict[int, int] = {}
        for mark in MARK.finditer(text):
            starts.setdefault(int(mark["number"]), mark.start())
        self._sources = {one.picture.number: one.source for one in seen}
        self.pictures = [
            replace(one.picture, start=starts[one.picture.number])
            for one in seen
            if one.picture.number in starts
        ]
        shown = "".join([self.digest, *(picture.digest for picture in self.pictures)])
        self.digest = sha256(shown.encode()).hexdigest()

    def load_picture(self, picture: Picture) -> tuple[str, str]:
        """Return (media type, base64) of one of its pictures."""
        return self._sources[picture.number].load_picture(picture)


def file_warnings(messages: Iterable[Message]) -> Iterator[str]:
    """Yield what was not read of files and pictures, or may be wrong with their text."""
    for message in messages:
        for part in parts_of(message):
            if isinstance(part, FileText):
                yield from part.warnings
            elif isinstance(part, Unread):
                yield part.reason
            elif message.get("role") == "user" and part.get("type") not in _KNOWN:
                kind = str(part.get("type"))[:_LONGEST_NAME]
                yield f"a part of type {kind!r} was not read: send text, a file or a picture."


def refuse_files(message: Message) -> None:
    """Refuse a message with a file that was not read: its text would be missing.

    Raises:
        Refusal: It has one.
    """
    for part in parts_of(message):
        if part.get("type") in FILES:
            reason = part.reason if isinstance(part, Unread) else _without_content(part)
            raise Refusal(400, reason, param="messages", code="unsupported_file")


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message; none if its content is text."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def _file(part: dict[str, Any]) -> dict[str, Any]:
    given = part.get("file")
    return given if isinstance(given, dict) else part


def _without_content(part: dict[str, Any]) -> str:
    file = _file(part)
    name = str(file.get("filename") or file.get("file_id") or "a file")[:_LONGEST_NAME]
    return f"{name}: only files with their content can be read. Send it in base64, as file_data."


def _open(data: str, name: str, suffix: str = "") -> Source:
    """Open a document in base64, or in a `data:` URL, which may name its type.

    Raises:
        MemAgentError: It cannot be read.
        ValueError: It is not base64.
    """
    head, _, encoded = data.rpartition(",")
    if not PurePosixPath(name).suffix:
        name += suffix_of_type(head.removeprefix("data:").partition(";")[0]) or suffix
    return open_source(b64decode("".join(encoded.split()), validate=True), name=name)


def _read(part: dict[str, Any]) -> dict[str, Any]:
    data = _file(part).get("file_data")
    if part.get("type") not in FILES or not isinstance(data, str):
        return part
    name = str(_file(part).get("filename") or "file")[:_LONGEST_NAME]
    try:
        source = _open(data, name)
    except MemAgentError as error:
        return Unread(part, str(error))
    except ValueError:
        return Unread(part, f"{name}: file_data is not base64. Encode the bytes of the file.")
    read = FileText(type="text")
    read.warnings = warnings_of(source)
    noted = "".join(f"[{line}]\n" for line in read.warnings)
    said = source.read(0, source.length)
    if getattr(source, "pictures", ()):
        # Pictures of the conversation have numbers of their own, and so has another file.
        read.document, said = cast("Pictured", source), without_numbers(said)
    read["text"] = f"===== {source.name} =====\n{noted}\n{said}"
    return read


def _number(file: FileText, document: Any, number: int) -> FileText:
    """Return a file whose pictures have the numbers of the conversation after `number`.

    A page that is a picture has no mark in the text of its file, and gets one.
    """
    said, before, parts, at = document.read(0, document.length), document.pictures, [], 0
    after = [replace(one, number=number + one.number) for one in before]
    for own, one in sorted(zip(before, after, strict=True), key=lambda pair: pair[0].start):
        is_marked = said.startswith(own.mark, own.start)
        parts += [without_numbers(said[at : own.start]), one.mark, "" if is_marked else "\n"]
        at = own.start + len(own.mark) * is_marked
    parts.append(without_numbers(said[at:]))
    head = file["text"].removesuffix(without_numbers(said))
    seen = FileText(file, text="".join([head, *parts]))
    document.pictures = after
    seen.source, seen.warnings = document, file.warnings
    return seen


def _look(part: dict[str, Any], number: int) -> dict[str, Any]:
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
    seen = FileText(
        type="text",
        text=source.read(0, source.length).replace(
            picture.mark, replace(picture, number=number).mark, 1
        ),
    )
    source.pictures = (replace(picture, number=number),)
    seen.source, seen.warnings = source, warnings_of(source)
    return seen
