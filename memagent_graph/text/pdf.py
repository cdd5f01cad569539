"""Read a PDF page by page; markitdown returns all pages as one text.

This runs in the process that converts documents.
"""

from __future__ import annotations

from io import BytesIO, StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_END = "\n\n\f"
"""End of a page, as in pdfminer's output."""


def read_pages(file: BytesIO) -> Iterator[str]:
    """Yield the text of each page, which ends with a form feed.

    Forms, and tables without lines, become tables as in markitdown; everything else is running text
    as arranged by pdfminer.
    """
    forms = _forms(file)
    for number, text in enumerate(_running_texts(file)):
        form = forms.get(number, "").strip()
        yield _merge(form + _END if form else text)


def _forms(file: BytesIO) -> dict[int, str]:
    """Pages that are forms, as tables, by number; empty if pdfplumber cannot read the file."""
    found: dict[int, str] = {}
    try:
        import pdfplumber
        from markitdown.converters._pdf_converter import _extract_form_content_from_words as form

        with pdfplumber.open(file) as document:
            for number, page in enumerate(document.pages):
                if text := form(page):
                    found[number] = text
                page.close()  # frees memory
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a parser may raise anything, and pdfminer may still read it
        return {}
    return found


def _running_texts(file: BytesIO) -> Iterator[str]:
    from pdfminer.converter import TextConverter
    from pdfminer.layout import LAParams
    from pdfminer.pdfinterp import PDFPageInterpreter, PDFResourceManager
    from pdfminer.pdfpage import PDFPage

    fonts = PDFResourceManager()
    for page in PDFPage.get_pages(file):
        text = StringIO()
        device = TextConverter(fonts, text, laparams=LAParams())
        PDFPageInterpreter(fonts, device).process_page(page)
        yield text.getvalue()


def _merge(text: str) -> str:
    """Join a number such as ".1" on a line of its own with the line that it numbers."""
    merge: Callable[[str], str]
    try:
        from markitdown.converters._pdf_converter import _merge_partial_numbering_lines as merge
    except ImportError:
        return text
    return merge(text)
