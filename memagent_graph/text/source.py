"""Documents as sources that are read in windows: the protocol, text, joined sources, outlines."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections import Counter
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, chain
from math import inf
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

from memagent_graph.pictures import Picture
from memagent_graph.templates import plural
from memagent_graph.text.terms import same_line_ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Location(NamedTuple):
    """A place in a file or part of a source, for display.

    The line and the page, slide or sheet count from 1. The heading is the nearest one above, or
    the title of the slide or sheet.
    """

    name: str
    line: int
    page: int | None = None
    heading: str | None = None


@dataclass(frozen=True)
class Converted:
    """The text of a document.

    `pages` are offsets of pages, slides or sheets, in code points; `warnings` what the text lacks;
    `pictures` those whose marks it has, in order; `lost` is the share of its parts (pages,
    chapters, attachments) whose words were not read, 0 to 1.
    """

    text: str = ""
    pages: Sequence[int] = ()
    warnings: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    lost: float = 0.0

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, content: bytes) -> Converted:
        """Return the record of these bytes; another content is a `ValueError` or `TypeError`."""
        fields = json.loads(content.decode("utf-8", "surrogatepass"))
        pictures = [Picture(**one) for one in fields.pop("pictures")]
        return cls(pictures=pictures, **fields)


ENDS_AT: ContextVar[float] = ContextVar("ends_at", default=inf)
"""Time, by `monotonic`, at which a conversion must have ended."""


class PasswordError(ValueError):
    """A document is encrypted."""


def warn_of(**counted: int) -> tuple[str, ...]:
    """Return a line for what was not read, by what it is and how many there are."""
    found = [plural(number, name.replace("_", " ")) for name, number in counted.items() if number]
    return (f"did not read {' and '.join(found)}.",) if found else ()


class OpenedSource(TypedDict):
    """A record of a source that was opened, read or skipped.

    `by` is what read it, "text" or a library and its version; `encoding` is None if it was
    converted, or given as text; `skipped` says why it was, in lower case.
    """

    name: str
    by: str | None
    encoding: str | None
    warnings: list[str]
    skipped: str | None


class Skipped(NamedTuple):
    """A file that was skipped, and why, in a sentence that begins in lower case."""

    name: str
    reason: str

    @property
    def is_document(self) -> bool:
        """Whether it may be meant to be read: it is not hidden, binary or empty, nor a link."""
        return not self.reason.startswith("it is a link") and not _NO_DOCUMENT.match(self.reason)

    def __str__(self) -> str:
        return f"skipped {self.name}: {self.reason}"


class Source(Protocol):
    """A document that is read in windows.

    Its `digest` is SHA-256 of the content, in hex, and its `length` in code points of the decoded
    text. `open_source({"uri": uri})` opens it again; text and streams have None.
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


_LINE_END = re.compile(r"\r\n?|\n")


class TextSource:
    """A source of text that is in memory; of a LangChain document, it has the `id`."""

    uri: str | None = None
    id: str | None = None

    def __init__(
        self, text: str, name: str = "text", metadata: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.name, self.text, self.length, self.metadata = name, text, len(text), metadata
        self.digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def read(self, start: int, size: int) -> str:
        """Code points `start` to `start + size`."""
        return self.text[start : start + size]

    def locate(self, offset: int) -> Location:
        """Return name and line of the code point at `offset`."""
        return Location(self.name, bisect_right(self._line_ends, offset) + 1)

    @cached_property
    def _line_ends(self) -> array[int]:
        return array("Q", (found.end() for found in _LINE_END.finditer(self.text)))


class JoinedSource:
    """Several sources joined, each introduced by a heading with its name.

    The parts of a part that is joined itself are parts of this one, and its skipped files are in
    `skips` too. `uri` opens them again; None makes one from the parts' own, if all have one.
    `borders` are where the headings begin, and the end.
    """

    def __init__(
        self,
        parts: Sequence[Source],
        name: str,
        *,
        uri: str | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        self.name = name
        self.skips = (*chain.from_iterable(map(skips_of, parts)), *skipped)
        found = (line for part in parts for line in warnings_of(part))
        self.warnings = tuple(dict.fromkeys([*_by_kind(skipped), *found]))
        self._parts: list[Source] = []
        for part in chain.from_iterable(map(flat_parts, parts)):
            space = "\n\n" if self._parts else ""
            self._parts.append(TextSource(f"{space}===== {part.name} =====\n\n", part.name))
            self._parts.append(part)
        *self._starts, self.length = accumulate((part.length for part in self._parts), initial=0)
        self.borders = [*self._starts[::2], self.length]
        self.digest = sha256("".join(part.digest for part in self._parts).encode()).hexdigest()
        uris = [part.uri for part in parts]
        self.uri = uri or (None if None in uris else "list:" + json.dumps(uris))

    def read(self, start: int, size: int) -> str:
        """Code points `start` to `start + size`."""
        found, index = list[str](), self._number_at(start)
        while size > 0 and index < len(self._parts):
            found.append(self._parts[index].read(max(start - self._starts[index], 0), size))
            size -= len(found[-1])
            index += 1
        return "".join(found)

    def locate(self, offset: int) -> Location:
        """Return the part's name, and the place in it, of the code point at `offset`."""
        index = self._number_at(offset)
        place = self._parts[index].locate(offset - self._starts[index])
        return place if index % 2 else Location(place.name, 1)

    @property
    def parts(self) -> list[Source]:
        """The joined sources, in order."""
        return self._parts[1::2]

    def leaves(self) -> list[Source | str]:
        """Return the joined sources, in order, each after its heading."""
        pairs = zip(self._parts[::2], self.parts, strict=True)
        return [one for head, part in pairs for one in (head.read(0, head.length), part)]

    def parts_between(self, start: int, end: float) -> Iterator[tuple[Source, int]]:
        """Yield the parts between code points `start` and `end`, each with its own offset.

        A part's heading belongs to the part.
        """
        for index in range(self._number_at(start) | 1, len(self._parts), 2):
            if self._starts[index - 1] >= end:
                break
            yield self._parts[index], self._starts[index]

    def _number_at(self, offset: int) -> int:
        return max(bisect_right(self._starts, offset) - 1, 0)


_MOST_NAMED = 3
"""Most files of one kind that are named: a folder of programs has a thousand compiled ones."""
_NO_DOCUMENT = re.compile("it is (hidden|(?:a )?(binary|empty))")


def _by_kind(skipped: Sequence[Skipped]) -> list[str]:
    """Count the files that nobody takes for documents, by suffix: hidden, binary and empty ones."""
    kinds = [
        (PurePosixPath(file.name).suffix.lower(), found[2] or found[1]) if found else None
        for file, found in ((file, _NO_DOCUMENT.match(file.reason)) for file in skipped)
    ]
    many = {kind: n for kind, n in Counter(filter(None, kinds)).items() if n > _MOST_NAMED}
    named = [str(file) for file, kind in zip(skipped, kinds, strict=True) if kind not in many]
    return named + [
        f"skipped {count} {suffix or 'other'} files: they are {why}."
        for (suffix, why), count in many.items()
    ]


def warnings_of(source: Source) -> tuple[str, ...]:
    """Return what was skipped or may be wrong with the text of a source, a line for each."""
    found: tuple[str, ...] = getattr(source, "warnings", ())
    return found


def metadata_of(source: Source) -> Mapping[str, Any]:
    """Return the metadata that a user gave a source."""
    found: Mapping[str, Any] = getattr(source, "metadata", {})
    return found


def flat_parts(source: Source) -> list[Source]:
    """Return the sources that a source is joined from, or itself."""
    return source.parts if isinstance(source, JoinedSource) else [source]


def skips_of(source: Source) -> tuple[Skipped, ...]:
    """Return the files that were skipped for a source."""
    return source.skips if isinstance(source, JoinedSource) else ()


def parts_with_offsets(
    source: Source, start: int = 0, end: float = inf
) -> Iterator[tuple[Source, int]]:
    """Yield the single sources between two offsets of a source, each with its own offset."""
    if isinstance(source, JoinedSource):
        yield from source.parts_between(start, end)
    else:
        yield source, 0


def sources_of(source: Source) -> list[OpenedSource]:
    """Return a record of each source that was opened for a document, skipped ones last."""
    opened = [
        OpenedSource(
            name=part.name,
            by=getattr(part, "read_by", "text"),
            encoding=getattr(part, "encoding", None),
            warnings=[*warnings_of(part)],
            skipped=None,
        )
        for part in flat_parts(source)
    ]
    return opened + [
        OpenedSource(name=name, by=None, encoding=None, warnings=[], skipped=reason)
        for name, reason in skips_of(source)
    ]


def share_opened(source: Source) -> float:
    """Return the share of the documents of a source that was opened, 0 to 1.

    A document that was skipped counts as one, and so does one whose conversion lost parts of it,
    by their share.
    """
    parts, skipped = flat_parts(source), skips_of(source)
    opened = sum(1 - getattr(part, "lost", 0.0) for part in parts)
    return opened / (len(parts) + sum(file.is_document for file in skipped))


def is_lost(source: OpenedSource) -> bool:
    """Whether a record is of a document that was skipped, rather than of another file."""
    skipped = source["skipped"]
    return skipped is not None and Skipped(source["name"], skipped).is_document


def digests_of(source: Source) -> list[str]:
    """Return the digests of a source and of all sources that it is joined from."""
    return [*dict.fromkeys([source.digest, *(part.digest for part in flat_parts(source))])]


MARKDOWN = frozenset({".md", ".markdown"})  # suffixes of text files with headings
_WINDOW, _LONGEST_HEADING = 1 << 16, 200
"""Code points of a text that are read at once, and those kept of a heading."""
_MARKED = re.compile(
    r"^ {0,3}(?:#{1,6}[ \t]+(?P<title>\S.*)|(?P<fence>`{3,}|~{3,})(?P<language>.*))$", re.MULTILINE
)


class Headings:
    """The headings (`# ...`) of a source that is Markdown."""

    def __init__(self, source: Source) -> None:
        self._starts: list[int] = []
        self._titles: list[str] = []
        start, opened = 0, ""  # by a fence: until the next one there is code
        while text := same_line_ends(source.read(start, _WINDOW)):
            end = text.rfind("\n") + 1 if len(text) == _WINDOW else 0
            end = end or len(text)
            for found in _MARKED.finditer(text, 0, end):
                fence = found["fence"] or ""
                if fence and not opened:
                    opened = fence
                elif fence and fence.startswith(opened) and not found["language"].strip():
                    opened = ""
                elif not fence and not opened:
                    title = found["title"].rstrip()
                    shorter = title.rstrip("#")  # closing marks stand apart
                    title = shorter.rstrip() if shorter[-1:] in {" ", "\t"} else title
                    self._starts.append(start + found.start())
                    self._titles.append(title[:_LONGEST_HEADING])
            start += end

    def above(self, offset: int, since: int = 0) -> str | None:
        """Return the last heading between `since` and `offset`, in code points; None if none."""
        number = bisect_right(self._starts, offset) - 1
        return self._titles[number] if number >= 0 and self._starts[number] >= since else None


_MOST_LISTED = 10  # most files that an error names


def list_lines(lines: Sequence[str]) -> str:
    """Join lines about files into one, as an error is printed; so many, and the rest counted."""
    more = len(lines) - _MOST_LISTED
    rest = [f"and {plural(more, 'other file')}."] if more > 0 else []
    return " ".join([*lines[:_MOST_LISTED], *rest])
