"""Find where the pages and headings of a text begin."""

from __future__ import annotations

import re
from bisect import bisect_right

MARKDOWN = frozenset({".md", ".markdown"})
"""Suffixes of text files with headings."""

_LONGEST_LINE = 1000
"""Code points of a line that are looked at."""

_LONGEST_HEADING = 200
"""Code points kept of a heading."""

_MOST_HEADINGS = 100_000
"""Headings kept of a text; later parts of the text have none."""

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(?P<title>\S.*)")
_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<language>.*)")
_SLIDE = re.compile(r"^<!-- Slide number: (\d{1,9}) -->$", re.MULTILINE)
_SHEET = re.compile(r"^## ", re.MULTILINE)


class Headings:
    """The headings (`# ...`) of Markdown, whose text is fed in pieces."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._titles: list[str | None] = []
        self._fence = ""
        self._line = ""
        self._begin = 0
        self._length = 0

    def feed(self, text: str) -> None:
        """Take the next piece of the text."""
        first, *others = text.split("\n")
        self._extend(first)
        for line in others:
            self._end_line()
            self._extend(line)

    def end(self) -> None:
        """Take the last line; call it after the last piece."""
        self._end_line()

    def above(self, offset: int, since: int = 0) -> str | None:
        """Return the last heading between `since` and `offset`, in code points; None if none."""
        number = bisect_right(self._starts, offset) - 1
        return self._titles[number] if number >= 0 and self._starts[number] >= since else None

    def _extend(self, piece: str) -> None:
        self._line += piece[: _LONGEST_LINE - len(self._line)]
        self._length += len(piece)

    def _end_line(self) -> None:
        if self._line:
            self._look(self._line.rstrip())
        self._length += 1
        self._begin, self._line = self._length, ""

    def _look(self, line: str) -> None:
        if line.lstrip(" ")[:1] not in {"#", "`", "~"}:
            return
        if fence := _FENCE.fullmatch(line):
            self._enter_or_leave(fence["mark"], fence["language"])
        elif not self._fence and (heading := _HEADING.fullmatch(line)):
            self._add(heading["title"])

    def _enter_or_leave(self, mark: str, language: str) -> None:
        """Note a fence: between two of them there is code, where `#` begins a comment."""
        if not self._fence:
            self._fence = mark
        elif mark.startswith(self._fence) and not language:
            self._fence = ""

    def _add(self, line: str) -> None:
        if len(self._starts) > _MOST_HEADINGS:
            return
        title = _without_closing_marks(line)[:_LONGEST_HEADING]
        self._starts.append(self._begin)
        self._titles.append(title if len(self._starts) <= _MOST_HEADINGS else None)


def _without_closing_marks(title: str) -> str:
    shorter = title.rstrip("#")
    return shorter.rstrip() if shorter[-1:] in {" ", "\t"} else title


def find_pages(text: str, suffix: str) -> list[int]:
    """Return the offsets of slides or sheets in a converted document; [] for other formats.

    A slide mark counts only if it has the next number, from 1: text that merely looks like a mark
    is skipped.
    """
    if suffix == ".xlsx":
        return [found.start() for found in _SHEET.finditer(text)]
    starts: list[int] = []
    if suffix == ".pptx":
        for found in _SLIDE.finditer(text):
            if int(found[1]) == len(starts) + 1:
                starts.append(found.start())
    return starts
