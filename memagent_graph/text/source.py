"""What to read: text, files, folders, streams and documents, behind windows of code points."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Location(NamedTuple):
    """A place for a person: file or part name, and line counted from 1."""

    name: str
    line: int


class Source(Protocol):
    """A document that is read in windows.

    Attributes:
        name: what to call it in output.
        digest: SHA-256 in hex that changes when the content does.
        length: code points of the decoded text.
        uri: what `open_source({"uri": uri})` opens it again with, or None (text, streams).
    """

    name: str
    digest: str
    length: int
    uri: str | None

    def read(self, start: int, size: int) -> str:
        """Code points `start` to `start + size`, fewer at the end.

        Raises:
            SourceChangedError: The file is no longer the one that was opened.
        """
        ...

    def locate(self, offset: int) -> Location:
        """File or part, and line in it, of the code point at `offset`."""
        ...


def open_source(document: Any) -> Source:
    """Open a document: text, a path, several, a stream, or LangChain documents."""
    raise NotImplementedError
