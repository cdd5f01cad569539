"""PDF, DOCX, HTML and the like: converted to text by markitdown."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile, is_zipfile

from memagent_graph.errors import MissingDependencyError, UnreadableSourceError
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from pathlib import Path

CONVERTERS = {
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".pptx": "PptxConverter",
    ".xlsx": "XlsxConverter",
    ".epub": "EpubConverter",
    ".html": "HtmlConverter",
    ".htm": "HtmlConverter",
}
"""The converter of each suffix; no other is tried, whatever a file turns out to be. Those for
archives, pictures and sound would unpack it, start programs or send it to a service."""

_MOST_BYTES = 1 << 30
"""Into which an archive may unpack."""


class ConvertedSource(TextSource):
    """The text of a file that markitdown converts.

    Raises:
        MissingDependencyError: The `documents` extra is not installed.
        UnreadableSourceError: The file is broken, not what its suffix says, or unpacks to more
            than 1 GiB.
    """

    def __init__(self, path: Path, name: str) -> None:
        try:
            from markitdown import MarkItDown, MarkItDownException, converters
        except ImportError as error:
            message = f'To read {name}: pip install "memagent-graph[documents]"'
            raise MissingDependencyError(message) from error
        _check_archive(path, name)
        content = path.read_bytes()
        converter = MarkItDown(enable_builtins=False, enable_plugins=False)
        converter.register_converter(getattr(converters, CONVERTERS[path.suffix.lower()])())
        try:
            text = converter.convert_local(path).text_content
        except MarkItDownException as error:
            message = f"{name} cannot be converted to text: {error}"
            raise UnreadableSourceError(message) from error
        super().__init__(text, name)
        self.digest = sha256(content).hexdigest()
        self.uri = path.absolute().as_uri()


def _check_archive(path: Path, name: str) -> None:
    if not is_zipfile(path):
        return
    try:
        with ZipFile(path) as archive:  # gives no more of a file than its directory says
            unpacked = sum(item.file_size for item in archive.infolist())
    except BadZipFile as error:
        message = f"{name} is a broken archive: {error}"
        raise UnreadableSourceError(message) from error
    if unpacked > _MOST_BYTES:
        message = f"{name} unpacks to {unpacked:,} bytes, and {_MOST_BYTES:,} is the most."
        raise UnreadableSourceError(message)
