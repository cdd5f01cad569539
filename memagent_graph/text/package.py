"""Archives of XML files, such as those of Office, OpenDocument and EPUB, and what they hold."""

from __future__ import annotations

import posixpath
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import ZipFile

from lxml import etree

from memagent_graph.text.charset import decode
from memagent_graph.text.conversion import convert_within
from memagent_graph.text.notation import as_integer
from memagent_graph.text.ocr import Album
from memagent_graph.text.source import Converted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Element: TypeAlias = Any
"""An element of lxml, which has no types."""
_EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)
_XML = b"<", b"\xef\xbb\xbf<", b"\xff\xfe", b"\xfe\xff"
"""How a file of XML begins, with and without a mark."""


class Package:
    """The parts of an archive of XML files, or of one such file, and how they refer to others."""

    def __init__(self, content: bytes) -> None:
        self._single = content if content.startswith(_XML) else b""  # all parts in one
        self._archive = ZipFile(BytesIO(_EMPTY_ARCHIVE if self._single else content))
        self._last: tuple[str, Element] = "", None
        self._names = {name.replace("\\", "/").lower(): name for name in self._archive.namelist()}

    def read(self, part: str) -> bytes | None:
        """Return the bytes of a part; None without one. The case of its name does not matter."""
        name = self._names.get(part.lstrip("/").lower())
        return None if name is None else self._archive.read(name)

    def parse(self, part: str) -> Element | None:
        """Return the root of a part; None if the archive lacks it. Raises as `parse_xml`.

        The last one is kept.
        """
        if self._last[0] != part:
            is_whole = self._single and not part.startswith("META-INF")
            content = self._single if is_whole else self.read(part)
            self._last = part, None if content is None else parse_xml(content, part)
        return self._last[1]

    def find(self, part: str, *names: str) -> Iterator[Element]:
        """Yield the elements of a part with these names; none without the part."""
        root = self.parse(part)
        yield from () if root is None else root.iter(*(f"{{*}}{name}" for name in names))

    def stream(self, part: str, *names: str) -> Iterator[Element]:
        """Yield the elements of a part with these names, each as soon as it is complete.

        What was yielded is freed: a sheet may have a million rows. Raises as `parse_xml`.
        """
        content, tags = self.read(part) or b"<none/>", [f"{{*}}{name}" for name in names]
        content = content if content.isascii() else decode(content).encode()
        for _, element in etree.iterparse(BytesIO(content), tag=tags, **_SETTINGS):
            _refuse_entities(element, part)
            yield element
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]

    def targets(self, part: str) -> dict[str, tuple[str, str]]:
        """Return (kind, part or address) of all that a part refers to, by id."""
        folder, name = posixpath.split(part.lstrip("/"))
        found, links = {}, posixpath.join(folder, "_rels", f"{name}.rels")
        for link in self.find(links, "Relationship"):
            kind, target = link.get("Type", "").rpartition("/")[2], link.get("Target", "")
            if link.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            found[link.get("Id", "")] = kind, target
        return found

    def main(self) -> str:
        """Return the name of the part that holds the document."""
        if target := dict(self.targets("").values()).get("officeDocument"):
            return target
        raise ValueError("it is no Office file, or a damaged one")


class Block(str):
    """A text that stands by itself: a paragraph, a table, a chart or what else is no run of one."""

    __slots__ = ()


def split_blocks(pieces: Iterable[str]) -> tuple[str, list[str]]:
    """Return the running text of pieces, and the blocks among them, which follow it."""
    text, blocks = list[str](), list[str]()
    for piece in pieces:
        (blocks if isinstance(piece, Block) else text).append(piece)
    return "".join(text), blocks


class OfficeDocument:
    """A document in a package."""

    def __init__(self, package: Package) -> None:
        self._package, self.album, self.page = package, Album(), 0

    @classmethod
    def read(cls, content: bytes) -> Converted:
        """Return the text of a file."""
        found = cls(Package(content))
        blocks = [*filter(None, found.all_blocks())]
        pages, unread = "\n\n".join(blocks).rstrip("\n").split("\f"), found.album.objects
        lost, starts = unread / max(len(blocks) + unread, 1), [*accumulate(map(len, pages[:-1]))]
        return Converted("".join(pages), starts, found.album.warnings, found.album.pictures, lost)

    def all_blocks(self) -> Iterator[str]:
        """Yield headers, body, footers, notes; each slide or sheet, a page, after a form feed."""
        raise NotImplementedError

    def _walk(self, parent: Element) -> Iterator[str]:
        """Yield the pieces of text in an element, and what stands by itself as a `Block`."""
        raise NotImplementedError

    def _blocks(self, parent: Element) -> Iterator[str]:
        return (piece for piece in self._walk(parent) if piece.strip())

    def _read_embedded(self, part: str) -> str:
        _, found = convert_within(part, self._package.read(part) or b"\0")
        self.album.objects += bool(found.lost)
        return found.text.replace("\f", "")

    def _show(self, part: str, caption: str) -> str:
        return self.album.add(self._package.read(part), part, caption.strip(), self.page)


def parse_xml(content: bytes, name: str) -> Element:
    """Return the root of a file of XML; one that declares entities is a `ValueError`."""
    root = etree.fromstring(decode(content).encode(), etree.XMLParser(**_SETTINGS))
    _refuse_entities(root, name)
    return root


_SETTINGS: Any = {"resolve_entities": False, "huge_tree": True, "encoding": "utf-8"}
"""Those of parsers. Parts are decoded before, since many are not in the encoding that they name."""


def _refuse_entities(element: Element, name: str) -> None:
    declared = element.getroottree().docinfo.internalDTD
    if declared is not None and declared.entities():
        message = f"{name} declares entities, which no Office program does"
        raise ValueError(message)


def local(element: Any) -> str:
    """Return the name of an element without its namespace; empty for a comment."""
    tag = getattr(element, "tag", None)
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def get(element: Any, name: str, default: str = "") -> str:
    """Return an attribute by its name without a namespace."""
    for key, value in element.attrib.items() if element is not None else ():
        if key.rpartition("}")[2] == name:
            return str(value)
    return default


def get_integer(element: Element | None, name: str, default: int = 0) -> int:
    """Return an attribute that is an integer, or else the default."""
    return as_integer(get(element, name), default)


def child(element: Any, *path: str) -> Any:
    """Return the first child at a path of names."""
    steps = (f"{{*}}{name}" for name in path)
    return None if element is None else element.find("/".join([".", *steps]))


def value_of(element: Any, *path: str) -> str:
    """Return the value that the child at a path of names sets; "" without one."""
    return get(child(element, *path), "val")


def own_parts(parent: Element, name: str, kind: str) -> Iterator[Element]:
    """Yield the elements of a name whose nearest ancestor of a kind is this one."""
    for element in parent.iter(f"{{*}}{name}"):
        if next(element.iterancestors(f"{{*}}{kind}")) is parent:
            yield element
