"""PDF, DOCX, HTML and the like: converted to text by markitdown, in a process of its own."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import file_digest
from importlib.util import find_spec
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    ConversionLimitError,
    MissingDependencyError,
    UnreadableSourceError,
)
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from pathlib import Path

    from memagent_graph.text.conversion import Limit
    from memagent_graph.text.converter import Limits

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
    """The text of a file that markitdown converts.

    Raises:
        MissingDependencyError: The `documents` extra is not installed.
        UnreadableSourceError: The file is broken, or not what its suffix says.
        ConversionLimitError: Converting it takes too long, or too much memory, or makes too much
            text.
    """

    def __init__(self, path: Path, name: str) -> None:
        if not find_spec("markitdown") or not find_spec("psutil"):
            raise _missing(name)
        from memagent_graph.text import converters
        from memagent_graph.text.converter import Limits

        limits = Limits.from_environment()
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        reply, text = converters.shared.convert(path.absolute(), limits)
        if reply.missing:
            raise _missing(name)
        if reply.limit is not None:
            raise _excess(name, reply.limit, reply.error, limits)
        if reply.error is not None:
            message = f"{name} cannot be converted to text: {reply.error}"
            raise UnreadableSourceError(message)
        super().__init__(text, name)
        self.digest = digest
        self.uri = path.absolute().as_uri()


def _missing(name: str) -> MissingDependencyError:
    message = f'To read {name}: pip install "memagent-graph[documents]"'
    return MissingDependencyError(message)


def _excess(name: str, limit: Limit, detail: str | None, limits: Limits) -> ConversionLimitError:
    what = _EXCESS[limit].format(name=name, **asdict(limits))
    message = (
        f"{what}{f': it {detail}' if detail else ''}. If you trust it, set {_VARIABLES[limit]} "
        "higher; else convert it to text elsewhere."
    )
    return ConversionLimitError(message, limit=limit)
