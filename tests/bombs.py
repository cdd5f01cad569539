"""Small documents of each format that is converted, and such that ask for gigabytes."""

from __future__ import annotations

import json
import zlib
from functools import partial
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


def write_opendocument(path: Path, body: str) -> Path:
    """The least that LibreOffice's formats ask for."""
    names = ("office", "text", "table", "drawing")
    declared = "".join(
        f' xmlns:{"draw" if name == "drawing" else name}="{OASIS}:{name}:1.0"' for name in names
    )
    content = f"<office:document-content{declared}><office:body>{body}</office:body>"
    return write_archive(path, {"content.xml": f"{content}</office:document-content>"})


def write_epub(path: Path, page: str) -> Path:
    """A book of one page."""
    return write_archive(
        path,
        {
            "META-INF/container.xml": (
                f'<container xmlns="{CONTAINER}"><rootfiles><rootfile full-path="a.opf"/>'
                "</rootfiles></container>"
            ),
            "a.opf": (
                '<package><manifest><item id="p" href="p.html"/></manifest>'
                '<spine><itemref idref="p"/></spine></package>'
            ),
            "p.html": page,
        },
    )


def write_pdf(path: Path, content: bytes, filters: int = 1) -> Path:
    """A PDF of one page whose content is compressed so many times."""
    for _ in range(filters):
        content = zlib.compress(content, 9)
    stream = b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources 6 0 R >>",
        stream % (len(content), b"/FlateDecode " * filters, content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F 5 0 R >> >>",
    ]
    whole, places = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    table = b"xref\n0 7\n0000000000 65535 f \n" + table
    end = b"trailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(whole)
    path.write_bytes(whole + table + end)
    return path


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


def _text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


DOCUMENTS: dict[str, Callable[[Path, str], Path]] = {
    "a.docx": lambda path, text: write_docx(path, f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"),
    "a.xlsx": lambda path, text: write_xlsx(
        path, f'<row r="1"><c r="A1" t="inlineStr"><is><t>{text}</t></is></c></row>'
    ),
    "a.pptx": write_pptx,
    "a.epub": lambda path, text: write_epub(path, f"<p>{text}</p>"),
    "a.pdf": lambda path, text: write_pdf(path, f"BT /F 9 Tf 9 9 Td ({text}) Tj ET".encode()),
    "a.html": lambda path, text: _text(path, f"<p>{text}</p>"),
    "a.htm": lambda path, text: _text(path, f"<p>{text}</p>"),
    "a.xhtml": lambda path, text: _text(path, f"<p>{text}</p>"),
    "a.docm": lambda path, text: write_docx(path, f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"),
    "a.xlsm": lambda path, text: write_xlsx(
        path, f'<row r="1"><c r="A1" t="inlineStr"><is><t>{text}</t></is></c></row>'
    ),
    "a.pptm": write_pptx,
    "a.odt": lambda path, text: write_opendocument(path, f"<text:p>{text}</text:p>"),
    "a.ods": lambda path, text: write_opendocument(
        path,
        '<office:spreadsheet><table:table table:name="s"><table:table-row><table:table-cell>'
        f"<text:p>{text}</text:p></table:table-cell></table:table-row></table:table>"
        "</office:spreadsheet>",
    ),
    "a.odp": lambda path, text: write_opendocument(
        path, f"<draw:page><draw:frame><text:p>{text}</text:p></draw:frame></draw:page>"
    ),
    "a.eml": lambda path, text: _text(path, f"From: Ann <ann@example.org>\n\n{text}\n"),
    "a.rtf": lambda path, text: _text(path, r"{\rtf1\ansi " + text + r"\par}"),
    "a.ipynb": lambda path, text: _text(
        path, json.dumps({"cells": [{"cell_type": "markdown", "source": [text]}]})
    ),
    "a.srt": lambda path, text: _text(path, f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"),
    "a.vtt": lambda path, text: _text(path, f"WEBVTT\n\n00:01.000 --> 00:02.000\n{text}\n"),
}
"""A document with a text, for each suffix that is converted."""

BOMBS: dict[str, Callable[[Path], Path]] = {
    "archive.docx": _claim,
    "paragraphs.docx": lambda path: write_docx(
        path, "<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 1_000_000
    ),
    "cells.xlsx": lambda path: write_xlsx(  # each cell has a copy in the text
        path, '<row><c t="s"><v>0</v></c></row>' * 1_000_000, shared="_x000D_" + "a" * 4_000
    ),
    "slide.pptx": partial(write_pptx, text="seed", paragraphs=3_000_000),
    "page.epub": lambda path: write_epub(path, "<p>a</p>" * 5_000_000),
    "streams.pdf": lambda path: write_pdf(path, b" " * 400_000_000, filters=2),
    "letters.pdf": lambda path: write_pdf(
        path, b"BT /F 9 Tf 9 9 Td " + b"(a) Tj " * 3_000_000 + b"ET"
    ),
    "page.html": lambda path: _text(path, "<p>a</p>" * 5_000_000),
}
"""Documents of kilobytes (the pages: 40 MB) that take gigabytes (the pages: 0.8)."""


def write_slow(path: Path) -> Path:
    """A page of HTML that takes minutes.

    A test that converts it limits the time of the converting process, never its own: how long it
    takes depends on what else the machine does.
    """
    return _text(path, "<div>" * 200_000 + "a")
