"""Documents as sources that are read in windows: the protocol, text, and joined sources."""

from __future__ import annotations

import json
from bisect import bisect_right
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Location(NamedTuple):
    """A place in a source, for display.

    Attributes:
        name: name of the file or part.
        line: counted from 1.
        page: page of a PDF, slide or sheet, counted from 1; None if there are none.
        heading: the nearest heading above, or the title of the slide or sheet; None if there is
            none.
    """

    name: str
    line: int
    page: int | None = None
    heading: str | None = None


class Source(Protocol):
    """A document that is read in windows.

    Attributes:
        name: its name in output.
        digest: SHA-256 of the content, in hex.
        length: code points of the decoded text.
        uri: `open_source({"uri": uri})` opens the source again; None if it cannot be (text,
            streams).
    """

    name: str
    digest: str
    length: int
    uri: str | None

    def read(self, start: int, size: int) -> str:
        """Return code points `start` to `start + size`, fewer at the end. Thread-safe.

        Raises:
            SourceChangedError: The source changed since it was opened.
        """
        ...

    def locate(self, offset: int) -> Location:
        """Return file or part, line, page and heading of the code point at `offset`."""
        ...


class TextSource:
    """A source of text that is in memory."""

    uri: str | None = None

    def __init__(self, text: str, name: str = "text") -> None:
        self.name = name
        self.text = text
        self.length = len(text)
        self.digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def read(self, start: int, size: int) -> str:
        """Code points `start` to `start + size`."""
        return self.text[start : start + size]

    def locate(self, offset: int) -> Location:
        """Return name and line of the code point at `offset`."""
        return Location(self.name, self.text.count("\n", 0, offset) + 1)


class JoinedSource:
    """Several sources joined, each introduced by a heading with its name.

    Args:
        parts: the sources, in order.
        name: name of all together, in output.
        uri: opens them again; None makes one from the parts' own, if all have one.
        skipped: number of files skipped as hidden, binary, or links out of the folder.
    """

    def __init__(
        self, parts: Sequence[Source], name: str, *, uri: str | None = None, skipped: int = 0
    ) -> None:
        self.name = name
        self.skipped = skipped + sum(getattr(part, "skipped", 0) for part in parts)
        self._parts: list[Source] = []
        self._starts: list[int] = []
        self.length = 0
        for part in parts:
            separator = "" if not self._parts else "\n\n"
            self._add(TextSource(f"{separator}===== {part.name} =====\n\n", part.name))
            self._add(part)
        self.digest = sha256("".join(part.digest for part in self._parts).encode()).hexdigest()
        uris = [part.uri for part in parts]
        self.uri = uri or (None if None in uris else "list:" + json.dumps(uris))

    def _add(self, part: Source) -> None:
        self._parts.append(part)
        self._starts.append(self.length)
        self.length += part.length

    def read(self, start: int, size: int) -> str:
        """Code points `start` to `start + size`."""
        pieces = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        while size > 0 and index < len(self._parts):
            piece = self._parts[index].read(start - self._starts[index], size)
            pieces.append(piece)
            start += len(piece)
            size -= len(piece)
            index += 1
        return "".join(pieces)

    def locate(self, offset: int) -> Location:
        """Return the part's name, and the place in it, of the code point at `offset`."""
        index = max(bisect_right(self._starts, offset) - 1, 0)
        place = self._parts[index].locate(offset - self._starts[index])
        return place if index % 2 else Location(place.name, 1)

    @property
    def parts(self) -> list[Source]:
        """The joined sources, in order."""
        return self._parts[1::2]

    def headed_parts(self) -> list[tuple[str, Source]]:
        """Return the joined sources, in order, each with its heading."""
        headings = [part.read(0, part.length) for part in self._parts[::2]]
        return [*zip(headings, self.parts, strict=True)]

    def parts_between(self, start: int, end: int) -> list[Source]:
        """Return the sources between code points `start` and `end`; nested joins are resolved.

        A part's heading belongs to the part.
        """
        found: list[Source] = []
        first = max(bisect_right(self._starts, start) - 1, 0) | 1
        for index in range(first, len(self._parts), 2):
            begin, part = self._starts[index], self._parts[index]
            if self._starts[index - 1] >= end:
                break
            if isinstance(part, JoinedSource):
                found += part.parts_between(max(start - begin, 0), end - begin)
            else:
                found.append(part)
        return found

    def part_at(self, offset: int) -> tuple[Source, int]:
        """Return the part of the code point at `offset`, or of its heading, and where it begins."""
        index = max(bisect_right(self._starts, offset) - 1, 0) | 1
        return self._parts[index], self._starts[index]


def digests_of(source: Source) -> list[str]:
    """Return the digests of a source and of all sources that it is joined from."""
    parts = source.parts if isinstance(source, JoinedSource) else []
    return [source.digest, *(digest for part in parts for digest in digests_of(part))]


def named_parts(source: Source, start: int, end: int) -> tuple[tuple[str, str], ...]:
    """Return (digest, name) of the sources between two offsets; () if the source is not joined."""
    if not isinstance(source, JoinedSource):
        return ()
    return tuple((part.digest, part.name) for part in source.parts_between(start, end))
