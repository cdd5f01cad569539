"""Read PDF files with PDFium: text, values of forms, remarks.

This runs in the process that converts documents.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pypdfium2 as pdfium
from pypdfium2 import raw

from memagent_graph.pictures.media import MOST_PIXELS, PictureError, check_size, draw
from memagent_graph.templates import plural
from memagent_graph.text.ocr import Album, PageReader, pictures
from memagent_graph.text.source import Converted, PasswordError, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from PIL import Image

_END = "\n\n\f"
"""End of a page."""

_BROKEN = re.compile("([^\\W\\d_])[\ufffe\x02]([a-zß-öø-ÿ])")
"""A word that a hyphen breaks at the end of a line; others keep their hyphen."""

_PICTURE_SHARE = 0.1
"""Share of a page above which a picture may hold text; logos and rules are smaller."""

_FIGURE_SHARE = 0.02
"""Share of a page from which a picture has a mark."""

_SCAN_SHARE = 0.7
"""Share of a page above which a picture is the page, scanned."""

_NO_LETTER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
"""A code instead of a letter, as in a font that does not say which letters it draws."""

_GARBLED_SHARE = 0.1
"""Share of such codes above which the text of a page is not what it shows."""

_STAMP = 200
"""Characters below which the text of a scanned page is a stamp or header that was added to it."""


def read_pdf(content: bytes) -> Converted:
    """Read a PDF; each page ends with a form feed.

    Raises:
        PasswordError: It is encrypted.
    """
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if raw.FPDF_GetLastError() in {raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY}:
            raise PasswordError from error
        raise
    document.init_forms()
    texts, ocr, album = list[str](), PageReader(), Album()
    damaged = garbled = pictured = visual = 0
    for number in range(len(document)):
        try:
            page = document[number]
        except pdfium.PdfiumError:
            damaged += 1
            texts.append(_END)
            continue
        text = _read_page(page)
        picture = _picture_share(page)
        is_page = picture > _SCAN_SHARE
        is_garbled = len(_NO_LETTER.findall(text)) > _GARBLED_SHARE * len(text)
        if not text or is_garbled or (picture > _SCAN_SHARE and len(text) < _STAMP):
            scanned = ocr.read(page, number + 1)
            stamps = [line for line in text.splitlines() if line.strip() not in scanned]
            if scanned:
                text, picture = "\n".join([scanned, *([] if is_garbled else stamps)]), 0
            garbled += is_garbled and not scanned
        visual += len(_SINGLE.findall(text)) > _MOST_SINGLE
        pictured += bool(text) and picture > _PICTURE_SHARE
        if _has_remarks(page):
            remarks = [*_remarks(document, page, text)]
            page = _flatten(document, number, page)
            drawn = [line for line in _read_page(page).splitlines() if line.strip() not in text]
            said = "\n".join(remarks)
            remarks += [line for line in drawn if line.strip() not in said]
            text = "\n".join([text, *[""][: len(remarks)], *remarks]).strip("\n")
        marks = _mark(album, page, number + 1, sum(map(len, texts)) if is_page else -1)
        if marks and not is_page:
            text = "\n\n".join(filter(None, [text, *marks]))
        texts.append(text + _END)
        page.close()  # frees memory
    starts = [0, *accumulate(map(len, texts[:-1]))] if texts else []
    warnings = warn_of(
        damaged_page=damaged,
        page_whose_fonts_name_no_letters=garbled,
        page_with_a_picture=pictured,
        attached_file=document.count_attachments(),
    )
    if visual:
        found = plural(visual, "page")
        torn = f"words may be torn apart on {found}, drawn letter by letter from right to left."
        warnings = (*warnings, torn)
    warnings = (*warnings, *ocr.warnings, *album.warnings)
    return Converted("".join(texts), starts, warnings, album.pictures)


def _mark(album: Album, page: pdfium.PdfPage, number: int, start: int) -> list[str]:
    """Take the pictures of a page that are large enough to show something; return their marks.

    Args:
        album: takes them.
        page: the page.
        number: its number.
        start: its offset in the text, if it is a picture as a whole, which needs no mark.
    """
    marks, area = [], page.get_width() * page.get_height() or 1
    for at, found in enumerate(pictures(page)):
        left, bottom, right, top = found.get_bounds()
        size = found.get_px_size()
        is_small = (right - left) * (top - bottom) < _FIGURE_SHARE * area
        if is_small or not 0 < prod(size) <= MOST_PIXELS:
            continue
        digest = sha256(bytes(found.get_data())).hexdigest()
        place = f"{number - 1},{at}"
        mark = album.place(place, digest, "image/png", size, page=number, start=start)
        marks.append(mark + ("" if start >= 0 else album.words_of(partial(_draw, found))))
    return marks


def draw_picture(content: bytes, place: str) -> Image.Image:
    """Return the pixels of a picture of a PDF.

    Raises:
        PictureError: It is not there, or exceeds a limit.
    """
    number, at = map(int, place.split(","))
    document = pdfium.PdfDocument(content)
    found = [*pictures(document[number])] if number < len(document) else []
    if at >= len(found):
        raise PictureError("it is no longer in the document")
    return _draw(found[at])


def _draw(picture: pdfium.PdfImage) -> Image.Image:
    check_size(*picture.get_px_size())
    drawn: Image.Image = draw(picture.get_bitmap(render=True, scale_to_original=True).to_pil())
    return drawn


def _read_page(page: pdfium.PdfPage) -> str:
    found = page.get_textpage()
    text = found.get_text_range()
    with suppress(pdfium.PdfiumError):  # a sign without a place
        text = _order_columns(found, text)
    found.close()
    text = _BROKEN.sub(r"\1\2", text.replace("\r\n", "\n"))
    text = text.replace("\ufffe", "-\n").replace("\x02", "-\n")
    return mirror_brackets(text.replace("\0", "").replace("\f", "\n").strip())


_LEAST_ROWS = 6
"""Rows with a gap in one place from which two columns may be drawn row by row."""
_LEAST_CELLS = 3
"""Rows in which both sides begin anew from which they may be cells of a table."""
_GUTTER = 8.0
"""Points between two columns."""


class _Row(NamedTuple):
    """A line of a page, at the widest gap in it.

    Attributes:
        left: the text before the gap, or all of it if it has none.
        right: the text behind it.
        gap: where it begins and ends, in points.
        edges: where the line begins and ends.
    """

    left: str
    right: str
    gap: tuple[float, float]
    edges: tuple[float, float]


def _order_columns(page: pdfium.PdfTextPage, text: str) -> str:
    """Return a page's text; of two columns of prose that are drawn row by row, one, then the other.

    A table stays as it is: its lines are not full, or few begin in the middle of a sentence.
    """
    rects = [page.get_rect(number) for number in range(page.count_rects())]
    apart = sum(
        two[0] - one[2] >= _GUTTER and two[1] < one[3] and one[1] < two[3]
        for one, two in pairwise(rects)
    )
    if apart < _LEAST_ROWS:
        return text
    ordered, block, at = list[str](), list[_Row](), 0
    for line in text.split("\r\n"):
        row = _find_gap(page, line, at)
        at += len(line) + 2
        if block and _find_gutter([*block, row]) is None:
            ordered += _read_block(block)
            block = []
        if row.right or block:
            block.append(row)
        else:
            ordered.append(line)
    return "\r\n".join([*ordered, *_read_block(block)])


def _find_gap(page: pdfium.PdfTextPage, line: str, start: int) -> _Row:
    boxes = [
        (page.get_charbox(start + at), at) for at, sign in enumerate(line) if not sign.isspace()
    ]
    gaps = [(two[0] - one[2], at, (one[2], two[0])) for (one, _), (two, at) in pairwise(boxes)]
    width, at, gap = max(gaps, default=(0.0, 0, (0.0, 0.0)))
    edges = (boxes[0][0][0], boxes[-1][0][2]) if boxes else (0.0, 0.0)
    if width < _GUTTER:
        return _Row(line, "", edges, edges)
    return _Row(line[:at], line[at:], gap, edges)


def _find_gutter(rows: Sequence[_Row]) -> tuple[float, float] | None:
    """Return the gap that all rows have, where each stands on one side of it or on both."""
    begin = max(row.gap[0] for row in rows if row.right)
    end = min(row.gap[1] for row in rows if row.right)
    for first, last in (row.edges for row in rows if not row.right):
        if last <= end:
            begin = max(begin, last)
        else:
            end = min(end, first)
    return (begin, end) if end - begin >= _GUTTER else None


def _read_block(rows: Sequence[_Row]) -> list[str]:
    """Return the lines of rows: column by column, if these are prose."""
    lines = [row.left + row.right for row in rows]
    gutter = _find_gutter(rows) if rows else None
    if gutter is None:
        return lines
    both = [at for at, row in enumerate(rows) if row.right]
    end = max(at for at, row in enumerate(rows, 1) if row.right or row.left[:1].islower())
    left, right = list[_Line](), list[_Line]()
    for row in rows[:end]:
        if row.right:
            left.append((row.left.rstrip(), row.edges[0], row.gap[0]))
            right.append((row.right, row.gap[1], row.edges[1]))
        elif row.left:
            (left if row.edges[1] <= gutter[1] else right).append((row.left, *row.edges))
    begun = [[not one[:1].islower() for one in (rows[at].left, rows[at].right)] for at in both]
    joint, most = sum(map(all, begun)), sum(map(any, begun))
    is_table = joint >= _LEAST_CELLS and joint >= _PROSE * most
    is_short = len(both) < max(_LEAST_ROWS, _PROSE * both[-1])
    if is_table or is_short or not all(map(_is_prose, (left, right))):
        return lines
    return [*(line[0] for line in (*left, *right)), *lines[end:]]


_Line: TypeAlias = tuple[str, float, float]
"""Text, and where it begins and ends, in points."""
_PROSE = 0.75
"""Share of the lines of prose, one below the other, that end where the next word had no room."""
_FULL = 0.9
"""Share of the width of a column that a full line has: who wraps may count letters."""
_WORDS = 3
"""Words in a line of prose."""


def _is_prose(lines: Sequence[_Line]) -> bool:
    words = sum(len(text.split()) for text, _, _ in lines)
    first, last = min(begin for _, begin, _ in lines), max(end for _, _, end in lines)
    room = first + _FULL * (last - first)
    full = inner = 0
    for (text, begin, end), (following, _, _) in pairwise(lines):
        word = len(following.split(maxsplit=1)[0]) + 1
        full += end + word * (end - begin) / len(text) > room
        inner += following[:1].islower()
    return min(full / _PROSE, 3 * inner, words / _WORDS) >= len(lines) - 1


_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_MIRRORED = str.maketrans("()[]", ")(][")
_SINGLE = re.compile(f"^ {{0,2}}{_RIGHT_TO_LEFT.pattern} {{0,2}}$", re.MULTILINE)
"""A line of one letter, as where each letter is drawn by itself, from right to left."""

_MOST_SINGLE = 9
"""Lines of one letter on a page above which its text is in the order in which it is drawn."""


_NUMBER = re.compile(r"^ {0,9}\w{1,3}[()\[\]]", re.MULTILINE)
"""Number of an item of a list, whose bracket has no other."""


def mirror_brackets(text: str) -> str:
    """Return a page with the brackets of its right-to-left lines turned, if more of them pair so.

    PDFium puts the letters of a line in their logical order. Whether it has to turn a bracket as
    well depends on the program that wrote the file.
    """
    lines = text.split("\n")
    turned = [bool(_RIGHT_TO_LEFT.search(line)) for line in lines]
    found = "\n".join(line for line, is_turned in zip(lines, turned, strict=True) if is_turned)
    if _count_pairs(found.translate(_MIRRORED)) <= _count_pairs(found):
        return text
    return "\n".join(
        line.translate(_MIRRORED) if is_turned else line
        for line, is_turned in zip(lines, turned, strict=True)
    )


def _count_pairs(text: str) -> int:
    """Return how many brackets that hold something are closed in their line."""
    pairs, opened = 0, list[tuple[str, int]]()
    for at, sign in enumerate(_NUMBER.sub("\n", text)):
        if sign == "\n":
            opened.clear()
        elif sign in "([":
            opened.append((sign, at))
        elif sign in ")]" and opened:
            opener, begin = opened.pop()
            pairs += opener == sign.translate(_MIRRORED) and at > begin + 1
    return pairs


def _flatten(document: pdfium.PdfDocument, number: int, page: pdfium.PdfPage) -> pdfium.PdfPage:
    """Return the page with what its remarks and fields draw, such as signatures, in its text."""
    raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)  # `page.flatten` refuses one without forms
    page.close()
    return document[number]


def _has_remarks(page: pdfium.PdfPage) -> bool:
    """Whether there is more on a page than its text, links apart."""
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        mark = raw.FPDFPage_GetAnnot(page, number)
        kind = raw.FPDFAnnot_GetSubtype(mark)
        raw.FPDFPage_CloseAnnot(mark)
        if kind not in {raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP}:
            return True
    return False


def _remarks(document: pdfium.PdfDocument, page: pdfium.PdfPage, text: str) -> Iterator[str]:
    """Yield the filled fields of forms, each with its name, and remarks that are not in the text.

    What marks words, such as a highlight, may repeat these in place of a remark.
    """
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        mark = raw.FPDFPage_GetAnnot(page, number)
        kind = raw.FPDFAnnot_GetSubtype(mark)
        if kind == raw.FPDF_ANNOT_WIDGET and document.formenv is not None:
            yield from _field(document.formenv, mark)
        elif kind not in {raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP, raw.FPDF_ANNOT_WIDGET}:
            said = _string(raw.FPDFAnnot_GetStringValue, mark, b"Contents")
            said = said.replace("\r\n", "\n").replace("\r", "\n").strip()
            if " ".join(said.split()) not in " ".join(text.split()):
                yield said
        raw.FPDFPage_CloseAnnot(mark)


_CHOSEN = {raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON}
_WRITTEN = {
    raw.FPDF_FORMFIELD_TEXTFIELD,
    raw.FPDF_FORMFIELD_COMBOBOX,
    raw.FPDF_FORMFIELD_LISTBOX,
}


def _field(form: pdfium.PdfFormEnv, mark: object) -> Iterator[str]:
    name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, mark)
    name = (name or _string(raw.FPDFAnnot_GetFormFieldName, form, mark)).strip()
    kind = raw.FPDFAnnot_GetFormFieldType(form, mark)
    value = _string(raw.FPDFAnnot_GetFormFieldValue, form, mark).strip()
    if kind in _WRITTEN and value:
        yield f"{name}: " + value.replace("\r", "\n")
    elif kind in _CHOSEN and raw.FPDFAnnot_IsChecked(form, mark):
        value = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, mark).strip()
        yield f"{name}: {value or 'checked'}"


def _string(function: Callable[..., int], *arguments: object) -> str:
    """Return the UTF-16 string that a function of PDFium writes."""
    size = function(*arguments, None, 0)
    buffer = (ctypes.c_ushort * (size // 2 + 1))()
    function(*arguments, buffer, size)
    return bytes(buffer)[: max(size - 2, 0)].decode("utf-16-le", "replace")


def _picture_share(page: pdfium.PdfPage) -> float:
    """Return the share of a page that its largest picture covers."""
    edges = (picture.get_bounds() for picture in pictures(page))
    areas = ((right - left) * (top - bottom) for left, bottom, right, top in edges)
    return max(areas, default=0) / (page.get_width() * page.get_height() or 1)
