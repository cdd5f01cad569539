"""Documents that can still be opened, and the passages of them that statements came from."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError, SourceError
from memagent_graph.memory.version import ChunkRead
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memagent_graph.evidence.places import Evidence
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.text.source import Source

_AROUND = 600
"""Code points that are shown before and after a passage."""
_LONGEST = 4_000
"""Code points of a passage that are shown."""
_KEPT = 8
"""Documents that are kept open."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Where a statement came from: the marked text, or the problem that kept it closed."""

    evidence: Evidence
    before: str = ""
    marked: str = ""
    after: str = ""
    problem: str = ""


class Documents:
    """Documents below some files and folders; nothing else is opened.

    A store says which document a memory came from: one is shown only if its content has the digest
    that the memory was read with.

    Args:
        roots: the files and folders.

    Raises:
        ConfigurationError: One does not exist.
    """

    def __init__(self, roots: Iterable[str | Path]) -> None:
        self._roots: list[Path] = []
        self._open: OrderedDict[str, Source] = OrderedDict()
        self._opening = asyncio.Semaphore(2)
        for given in roots:
            try:
                self._roots.append(Path(given).resolve(strict=True))
            except (OSError, RuntimeError) as error:
                message = f"--root {given} cannot be read: {error}"
                raise ConfigurationError(message) from error

    async def passage(self, bank: MemoryBank, version: MemoryVersion, number: int) -> Passage:
        """The passage of one of a version's pieces of evidence."""
        evidence = version.memory.evidence[number]
        origin = await _origin(bank, version, evidence)
        async with self._opening:
            return await asyncio.to_thread(self._read, origin, evidence)

    def _read(self, origin: MemoryVersion, evidence: Evidence) -> Passage:
        problem = "No document of this name, with the content that was read, is below --root."
        try:
            whole = self._find(origin.document.digest, origin.document.name)
            if whole is not None:
                return _cut(whole, evidence, evidence.start, evidence.end)
            parts = origin.made_by.parts if isinstance(origin.made_by, ChunkRead) else ()
            for digest in [digest for digest, name in parts if name == evidence.source]:
                part = self._find(digest, evidence.source)
                if part is not None:
                    return _cut(part, evidence, *_line(part, evidence.line))
        except (SourceError, OSError, ImportError) as error:
            self._open.clear()
            problem = f"The document cannot be opened: {error}"
        return Passage(evidence, problem=problem)

    def _find(self, digest: str, name: str) -> Source | None:
        if digest in self._open:
            self._open.move_to_end(digest)
            return self._open[digest]
        for path in dict.fromkeys(self._places(name)):
            source = open_source(path)
            if source.digest == digest:
                self._open[digest] = source
                if len(self._open) > _KEPT:
                    self._open.popitem(last=False)
                return source
        return None

    def _places(self, name: str) -> Iterator[Path]:
        """Paths below the roots that a document of this name may have."""
        parts = [part for part in PurePath(name).parts if part not in ("/", "..", ".")]
        for root in self._roots:
            if parts and root.name == parts[-1]:
                yield root
            for first in range(len(parts)):
                try:
                    found = root.joinpath(*parts[first:]).resolve()
                    below = found.relative_to(root)
                    there = found.exists()
                except (OSError, RuntimeError, ValueError):  # too long, a NUL, outside
                    continue
                if there and not any(part.startswith(".") for part in below.parts):
                    yield found


async def _origin(bank: MemoryBank, version: MemoryVersion, evidence: Evidence) -> MemoryVersion:
    """The first version that had this evidence: its document is the one that it is of."""
    place = (evidence.source, evidence.line, evidence.start, evidence.end)
    found = version
    for older in await bank.ahistory(version.id):
        if not any((e.source, e.line, e.start, e.end) == place for e in older.memory.evidence):
            break
        found = older
    return found


def _cut(source: Source, evidence: Evidence, start: int, end: int) -> Passage:
    end = min(max(end, start), start + _LONGEST)
    begin = max(start - _AROUND, 0)
    text = source.read(begin, end - begin + _AROUND)
    first, last = start - begin, end - begin
    before, marked, after = text[:first], text[first:last], text[last:]
    if begin and "\n" in before:  # a whole line is easier to begin with
        before = before.partition("\n")[2]
    return Passage(evidence, before, marked, after)


def _line(source: Source, number: int) -> tuple[int, int]:
    """Where a line begins and ends, in code points."""
    begin = bisect_left(range(source.length), number, key=lambda at: source.locate(at).line)
    return begin, begin + len(source.read(begin, _LONGEST).partition("\n")[0])
