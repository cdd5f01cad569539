"""Small documents of each format that is converted, and such that ask for gigabytes."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZipFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OASIS = "urn:oasis:names:tc:opendocument:xmlns"
CONTAINER = "urn:oasis:names:tc:opendocument:xmlns:container"


def write_archive(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _relations(*links: tuple[str, str]) -> str:
    listed = "".join(
        f'<Relationship Id="rId{number}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(links, 1)
    )
    return f'<Relationships xmlns="{PACKAGE}/relationships">{listed}</Relationships>'


def write_docx(path: Path, body: str, doctype: str = "") -> Path:
    """The least that Word's format asks for."""
    return write_archive(
        path,
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"/>',
            "_rels/.rels": _relations(("officeDocument", "word/document.xml")),
            "word/document.xml": (
                f'{doctype}<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
            ),
        },
    )


def write_xlsx(path: Path, rows: str, shared: str = "") -> Path:
    """The least that Excel's format asks for; its text number 0 is `shared`."""
    types = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {"workbook.xml": "sheet.main", "s.xml": "worksheet", "t.xml": "sharedStrings"}
    listed = "".join(
        f'<Override PartName="/xl/{part}" ContentType="{types}.{kind}+xml"/>'
        for part, kind in parts.items()
    )
    return write_archive(
        path,
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">{listed}</Types>',
            "_rels/.rels": _relations(("officeDocument", "xl/workbook.xml")),
            "xl/_rels/workbook.xml.rels": _relations(
                ("worksheet", "s.xml"), ("sharedStrings", "t.xml")
            ),
            "xl/workbook.xml": (
                f'<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets>'
                '<sheet name="a" sheetId="1" r:id="rId1"/></sheets></workbook>'
            ),
            "xl/s.xml": (  # without a dimension, it would be read twice
                f'<worksheet xmlns="{SHEET}"><dimension ref="A1"/>'
                f"<sheetData>{rows}</sheetData></worksheet>"
            ),
            "xl/t.xml": f'<sst xmlns="{SHEET}"><si><t>{shared}</t></si></sst>',
        },
    )


def write_opendocument(
    path: Path, body: str, styles: str = "", parts: Mapping[str, str] | None = None
) -> Path:
    """The least that LibreOffice's formats ask for."""
    names = ("office", "text", "style", "table", "presentation")
    declared = "".join(f' xmlns:{name}="{OASIS}:{name}:1.0"' for name in names)
    declared += f' xmlns:draw="{OASIS}:drawing:1.0" xmlns:xlink="xlink"'
    content = f"<office:document-content{declared}>{styles}<office:body>{body}</office:body>"
    whole = f"{content}</office:document-content>"
    return write_archive(path, {"content.xml": whole, **(parts or {})})


def write_epub(path: Path, pages: Mapping[str, str], metadata: str = "") -> Path:
    """A book of pages, in the order of their addresses; one without a text is missing."""
    items = "".join(f'<item id="{page}" href="{page}"/>' for page in pages)
    order = "".join(f'<itemref idref="{page}"/>' for page in pages)
    return write_archive(
        path,
        {
            "META-INF/container.xml": (
                f'<container xmlns="{CONTAINER}"><rootfiles><rootfile full-path="o/a.opf"/>'
                "</rootfiles></container>"
            ),
            "o/a.opf": (
                f"<package>{metadata}<manifest>{items}</manifest><spine>{order}</spine></package>"
            ),
            **{f"o/{unquote(page)}": text for page, text in pages.items() if text},
        },
    )


def write_objects(path: Path, objects: Iterable[bytes]) -> Path:
    """A PDF of these objects, the first of which is its catalog."""
    whole, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, item in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(whole)
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    size = table.count(b"\n")
    end = b"xref\n0 %d\n%strailer\n<< /Size %d /Root 1 0 R >>\n" % (size, table, size)
    path.write_bytes(whole + end + b"startxref\n%d\n%%%%EOF" % len(whole))
    return path


def write_pdf(path: Path, content: bytes, filters: int = 1, more: bytes = b"") -> Path:
    """A PDF of one page whose content is compressed so many times; `more` is of its page."""
    for _ in range(filters):
        content = zlib.compress(content, 9)
    page = b"/MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >>"
    stream = b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream"
    return write_objects(
        path,
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R %s %s >>" % (page, more),
            stream % (len(content), b"/FlateDecode " * filters, content),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ],
    )


def write_pptx(path: Path, text: str, paragraphs: int = 1) -> Path:
    """One slide with a text so many times."""
    from pptx import Presentation

    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = text
    presentation.save(path)
    with ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    once = f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>".encode()
    assert once in files["ppt/slides/slide1.xml"]
    files["ppt/slides/slide1.xml"] = files["ppt/slides/slide1.xml"].replace(once, once * paragraphs)
    return write_archive(path, files)


def _claim(path: Path) -> Path:
    """An archive of which little is there, and 2 GiB are claimed."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", " " * 1_000_000)
        archive.infolist()[0].file_size = 2 << 30
    return path


def _text(content: str) -> Callable[[Path, str], Path]:
    """Writes a text where `content` has a *."""

    def write(path: Path, text: str) -> Path:
        path.write_text(content.replace("*", text))
        return path

    return write


def _word(path: Path, text: str) -> Path:
    return write_docx(path, f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")


def _excel(path: Path, text: str) -> Path:
    return write_xlsx(path, f'<row r="1"><c r="A1" t="inlineStr"><is><t>{text}</t></is></c></row>')


def _opendocument(content: str) -> Callable[[Path, str], Path]:
    return lambda path, text: write_opendocument(path, content.replace("*", text))


DOCUMENTS: dict[str, Callable[[Path, str], Path]] = {
    "a.docx": _word,
    "a.xlsx": _excel,
    "a.pptx": write_pptx,
    "a.epub": lambda path, text: write_epub(path, {"p.html": f"<p>{text}</p>"}),
    "a.pdf": lambda path, text: write_pdf(path, f"BT /F 9 Tf 9 9 Td ({text}) Tj ET".encode()),
    "a.html": _text("<p>*</p>"),
    "a.htm": _text("<p>*</p>"),
    "a.xhtml": _text("<p>*</p>"),
    "a.docm": _word,
    "a.xlsm": _excel,
    "a.pptm": write_pptx,
    "a.odt": _opendocument("<text:p>*</text:p>"),
    "a.ods": _opendocument(
        '<office:spreadsheet><table:table table:name="s"><table:table-row><table:table-cell>'
        "<text:p>*</text:p></table:table-cell></table:table-row></table:table></office:spreadsheet>"
    ),
    "a.odp": _opendocument("<draw:page><draw:frame><text:p>*</text:p></draw:frame></draw:page>"),
    "a.eml": _text("From: Ann <ann@example.org>\n\n*\n"),
    "a.ics": _text("SUMMARY:*"),
    "a.rtf": _text(r"{\rtf1\ansi *\par}"),
    "a.ipynb": _text('{"cells": [{"cell_type": "markdown", "source": ["*"]}]}'),
}
"""A document with a text, for each suffix that is converted."""

BOMBS: dict[str, Callable[[Path], Path]] = {
    "archive.docx": _claim,
    "paragraphs.docx": lambda path: write_docx(
        path, "<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 1_000_000
    ),
    "cells.xlsx": lambda path: write_xlsx(  # each cell has a copy in the text
        path, '<row><c t="s"><v>0</v></c></row>' * 130_000, shared="_x000D_" + "a" * 30_000
    ),
    "slide.pptx": partial(write_pptx, text="seed", paragraphs=3_000_000),
    "page.epub": lambda path: write_epub(path, {"p.html": "<p>a</p>" * 5_000_000}),
    "streams.pdf": lambda path: write_pdf(path, b" " * 400_000_000, filters=2),
    "letters.pdf": lambda path: write_pdf(
        path, b"BT /F 9 Tf 9 9 Td " + b"(a) Tj " * 3_000_000 + b"ET"
    ),
    "page.html": partial(_text("*"), text="<p>a</p>" * 5_000_000),
}
"""Documents of kilobytes (the pages: 40 MB) that take gigabytes (the pages: 0.8)."""


def write_slow(path: Path) -> Path:
    """A page of HTML that takes minutes.

    A test that converts it limits the time of the converting process, never its own: how long it
    takes depends on what else the machine does.
    """
    return _text("*")(path, "<div>" * 200_000 + "a")
