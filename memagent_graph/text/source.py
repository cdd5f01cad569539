"""What to read, behind windows of code points: the protocol, text, and several joined."""

from __future__ import annotations

import json
from bisect import bisect_right
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Location(NamedTuple):
    """A place for a person.

    Attributes:
        name: of the file or part.
        line: counted from 1.
        page: page of a PDF, slide or sheet, counted from 1; None where there are none.
        heading: the nearest one above, of a slide or sheet its own; None if there is none.
    """

    name: str
    line: int
    page: int | None = None
    heading: str | None = None


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
        """Code points `start` to `start + size`, fewer at the end; also from several threads.

        Raises:
            SourceChangedError: The file is no longer the one that was opened.
        """
        ...

    def locate(self, offset: int) -> Location:
        """File or part, line, page and heading of the code point at `offset`."""
        ...


class TextSource:
    """Text that is in memory anyway."""

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
        """The line of the code point at `offset`."""
        return Location(self.name, self.text.count("\n", 0, offset) + 1)


class JoinedSource:
    """Several sources one after the other, each introduced by its name.

    Args:
        parts: the sources, in order.
        name: what to call them together.
        uri: what opens them again; None takes the parts' own, if all have one.
        skipped: files left out because they are hidden, not text, or lead out of the folder.
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
        """Name of the part, and place in it, of the code point at `offset`."""
        index = max(bisect_right(self._starts, offset) - 1, 0)
        place = self._parts[index].locate(offset - self._starts[index])
        return place if index % 2 else Location(place.name, 1)

    @property
    def parts(self) -> list[Source]:
        """The sources, in order."""
        return self._parts[1::2]

    def headed_parts(self) -> list[tuple[str, Source]]:
        """The sources, in order, each with the heading that introduces it."""
        headings = [part.read(0, part.length) for part in self._parts[::2]]
        return [*zip(headings, self.parts, strict=True)]

    def parts_between(self, start: int, end: int) -> list[Source]:
        """The sources that code points `start` to `end` are of, down to those that are not joined.

        A part's heading counts as the part.
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
        """The part that has the code point at `offset` or whose name that is; where it begins."""
        index = max(bisect_right(self._starts, offset) - 1, 0) | 1
        return self._parts[index], self._starts[index]


def digests_of(source: Source) -> list[str]:
    """Of a source, and of all that it is joined from."""
    parts = source.parts if isinstance(source, JoinedSource) else []
    return [source.digest, *(digest for part in parts for digest in digests_of(part))]


def named_parts(source: Source, start: int, end: int) -> tuple[tuple[str, str], ...]:
    """Digests and names of the documents that a part of a joined source is of; of others none."""
    if not isinstance(source, JoinedSource):
        return ()
    return tuple((part.digest, part.name) for part in source.parts_between(start, end))
