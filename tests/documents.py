"""Documents of several pages, slides, sheets and headings, as people's programs write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bombs import write_docx, write_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_pages(path: Path, pages: Sequence[Sequence[tuple[int, int, str]]]) -> Path:
    """A PDF; each page is a list of texts with where they stand, in points from below left."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    box, fonts = "/MediaBox [0 0 612 792]", "/Resources << /Font << /F 3 0 R >> >>"
    for number, texts in enumerate(pages):
        drawn = "".join(f"BT /F 9 Tf {x} {y} Td ({text}) Tj ET\n" for x, y, text in texts)
        objects += [
            f"<< /Type /Page /Parent 2 0 R {box} {fonts} /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}endstream",
        ]
    return write_objects(path, map(str.encode, objects))


def write_scan(path: Path, pages: Sequence[Sequence[tuple[int, int, str]]]) -> Path:
    """The same as pictures of text, as a scanner saves them."""
    import pypdfium2 as pdfium

    scanned = pdfium.PdfDocument.new()
    for drawn in pdfium.PdfDocument(write_pages(path, pages)):
        picture = pdfium.PdfImage.new(scanned)
        picture.set_bitmap(drawn.render(scale=150 / 72))
        picture.set_matrix(pdfium.PdfMatrix().scale(*drawn.get_size()))
        page = scanned.new_page(*drawn.get_size())
        page.insert_obj(picture)
        page.gen_content()
    scanned.save(path)
    return path


def write_slides(path: Path, slides: Sequence[tuple[str | None, str]]) -> Path:
    """A presentation; each slide has a title or none, and a text."""
    from pptx import Presentation

    presentation = Presentation()
    for title, text in slides:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6 if title is None else 5])
        if title is not None:
            slide.shapes.title.text = title
        box = slide.shapes.add_textbox(0, 5_000_000, 9, 9)
        box.text_frame.text = text
    presentation.save(path)
    return path


def write_sheets(path: Path, sheets: Mapping[str, Sequence[Sequence[str]]]) -> Path:
    """A workbook; each sheet has rows."""
    from openpyxl import Workbook

    workbook = Workbook()
    del workbook[workbook.sheetnames[0]]
    for name, rows in sheets.items():
        sheet = workbook.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    workbook.save(path)
    return path


def write_headed(path: Path, parts: Sequence[tuple[int, str]]) -> Path:
    """A DOCX of headings, with their level, and paragraphs, with level 0."""
    body = ""
    for level, text in parts:
        style = f'<w:pPr><w:pStyle w:val="Heading{level}"/></w:pPr>' if level else ""
        body += f"<w:p>{style}<w:r><w:t>{text}</w:t></w:r></w:p>"
    return write_docx(path, body)
