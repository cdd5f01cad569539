"""Read the files in a conversation: each becomes text of its message."""

from __future__ import annotations

from base64 import b64decode
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemAgentError
from memagent_graph.text.files import open_source
from memagent_graph.text.formats import suffix_of_type
from memagent_graph.text.source import warnings_of
from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Message = dict[str, Any]

FILES = frozenset({"file", "input_file", "document"})
"""Types of parts that are files."""
_LONGEST_NAME = 200
"""Characters of a file's name that are shown."""


class FileText(dict[str, Any]):
    """A part of a message with the text of a file.

    Attributes:
        warnings: what was not read of the file, or may be wrong with its text.
    """

    warnings: Sequence[str] = ()


class FileError(dict[str, Any]):
    """A file that was not read, as the client sent it; the model's server may know it.

    Attributes:
        reason: why it was not read.
    """

    reason = ""


def has_files(messages: Iterable[Message]) -> bool:
    """Whether a message has a file."""
    return any(part.get("type") in FILES for message in messages for part in parts_of(message))


def read_files(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with the text of each file in its place."""
    return [
        {**message, "content": [*map(_read, parts)]} if (parts := parts_of(message)) else message
        for message in messages
    ]


def file_warnings(messages: Iterable[Message]) -> Iterator[str]:
    """Yield what was not read of files, or may be wrong with their text."""
    for message in messages:
        for part in parts_of(message):
            yield from part.warnings if isinstance(part, FileText) else ()


def refuse_files(message: Message) -> None:
    """Refuse a message with a file that was not read: its text would be missing.

    Raises:
        Refusal: It has one.
    """
    for part in parts_of(message):
        if isinstance(part, FileError) or part.get("type") in FILES:
            reason = part.reason if isinstance(part, FileError) else _without_content(part)
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


def _read(part: dict[str, Any]) -> dict[str, Any]:
    data = _file(part).get("file_data")
    if part.get("type") not in FILES or not isinstance(data, str):
        return part
    head, _, tail = data.rpartition(",")
    kind = head.removeprefix("data:").partition(";")[0]
    name = str(_file(part).get("filename") or "file")[:_LONGEST_NAME]
    if not PurePosixPath(name).suffix:
        name += suffix_of_type(kind)
    try:
        content = b64decode("".join(tail.split()), validate=True)
        source = open_source(content, name=name)
    except (MemAgentError, ValueError) as error:
        unread = FileError(part)
        unread.reason = str(error)
        if not isinstance(error, MemAgentError):
            unread.reason = f"{name}: file_data is not base64. Encode the bytes of the file."
        return unread
    read = FileText(type="text")
    read.warnings = warnings_of(source)
    noted = "".join(f"[{line}]\n" for line in read.warnings)
    read["text"] = f"===== {name} =====\n{noted}\n{source.read(0, source.length)}"
    return read
