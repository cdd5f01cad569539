"""PDF, DOCX, HTML and the like, converted to text once, by markitdown in a separate process."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import asdict
from functools import cache, cached_property
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    ConversionLimitError,
    MissingDependencyError,
    UnreadableSourceError,
)
from memagent_graph.text.conversion import CONVERTERS, Converted
from memagent_graph.text.outline import Headings
from memagent_graph.text.source import Location, TextSource
from memagent_graph.text.user_cache import open_cache

if TYPE_CHECKING:
    from pathlib import Path

    from memagent_graph.text.conversion import Limit
    from memagent_graph.text.converter import Limits

_FORM = 1
"""Version of the conversion; a change here that gives other texts or pages increases it."""

_MB = 1 << 20

_EXCESS = {
    "time": "Converting {name} to text takes longer than {seconds:g} seconds",
    "memory": "Converting {name} to text takes more than {memory_mb:g} MB of memory",
    "output": "The text of {name} is longer than {output_mb:g} MB",
}
_VARIABLES = {
    "time": "MEMAGENT_CONVERSION_SECONDS",
    "memory": "MEMAGENT_CONVERSION_MEMORY_MB",
    "output": "MEMAGENT_CONVERSION_OUTPUT_MB",
}


class ConvertedSource(TextSource):
    """The text of a file that markitdown converts; taken from the cache if it is there.

    Raises:
        MissingDependencyError: The `documents` extra is not installed.
        UnreadableSourceError: The file is broken, or not what its suffix says.
        ConversionLimitError: The conversion exceeds the limit on time, memory or length of text.
    """

    def __init__(self, path: Path, name: str) -> None:
        if not find_spec("markitdown") or not find_spec("psutil"):
            raise _missing(name)
        digest, converted = _find_or_convert(path, name)
        super().__init__(converted.text, name)
        self.digest = digest
        self.uri = path.absolute().as_uri()
        self._pages = converted.pages
        self._is_markdown = path.suffix.lower() != ".pdf"

    def locate(self, offset: int) -> Location:
        """Return name, line, page and heading of the code point at `offset`."""
        page = bisect_right(self._pages, offset)
        begin = self._pages[page - 1] if page else 0
        heading = self._headings.above(offset, since=begin)
        return super().locate(offset)._replace(page=page or None, heading=heading)

    @cached_property
    def _headings(self) -> Headings:
        headings = Headings()
        if self._is_markdown:
            headings.feed(self.text)
            headings.end()
        return headings


def _find_or_convert(path: Path, name: str) -> tuple[str, Converted]:
    """The digest of a file, and its text."""
    from memagent_graph.text.converter import Limits

    limits = Limits.from_environment()
    kept, converter = open_cache(), _converter(path.suffix.lower())
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if kept and converter:
        found = kept.find(f"{digest}-{converter}", int(limits.output_mb * _MB))
        if found is not None:
            with suppress(ValueError, TypeError):  # an entry of another kind is written anew
                return digest, Converted.decode(*found)
    digest, converted = _convert(path, name, limits)
    if kept and converter:
        kept.keep(f"{digest}-{converter}", converted.encode())
    return digest, converted


def _convert(path: Path, name: str, limits: Limits) -> tuple[str, Converted]:
    """The text of a file, and the digest of the bytes that it was made from."""
    from memagent_graph.text import converters

    reply, converted = converters.shared.convert(path.absolute(), limits)
    if reply.missing:
        raise _missing(name)
    if reply.limit is not None:
        raise _excess(name, reply.limit, reply.error, limits)
    if reply.error is not None:
        message = (
            f"{name} cannot be converted to text: {reply.error.rstrip('. ')}. Check that it opens "
            "elsewhere, or save it as plain text."
        )
        raise UnreadableSourceError(message)
    return reply.digest, converted


@cache
def _converter(suffix: str) -> str | None:
    """A digest of converter and version for a format; None if markitdown reports no version."""
    try:
        made_by = f"{CONVERTERS[suffix]} {version('markitdown')} {_FORM}"
    except PackageNotFoundError:
        return None
    return sha256(made_by.encode()).hexdigest()[:16]


def _missing(name: str) -> MissingDependencyError:
    message = f'To read {name}: pip install "memagent-graph[documents]"'
    return MissingDependencyError(message)


def _excess(name: str, limit: Limit, detail: str | None, limits: Limits) -> ConversionLimitError:
    what = _EXCESS[limit].format(name=name, **asdict(limits))
    message = (
        f"{what}{f': it {detail}' if detail else ''}. If you trust it, raise {_VARIABLES[limit]}; "
        "otherwise convert it to text with another tool."
    )
    return ConversionLimitError(message, limit=limit)
