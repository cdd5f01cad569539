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
from typing import TYPE_CHECKING

import pypdfium2 as pdfium
from pypdfium2 import raw

from memagent_graph.templates import plural
from memagent_graph.text.ocr import (
    MOST_PIXELS,
    Album,
    Box,
    PageReader,
    PictureError,
    check_size,
    draw,
    find_gap,
    order_lines,
    pictures,
)
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
    """Read a PDF; each page ends with a form feed."""
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
        remarks = [*_remarks(document, page, text)]
        if remarks:
            # What they draw, such as signatures; `page.flatten` refuses one without forms.
            raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
            page.close()
            page = document[number]
            drawn = [line for line in _read_page(page).splitlines() if line.strip() not in text]
            remarks = [*filter(None, remarks)]
            known = "\n".join(remarks)
            remarks += [line for line in drawn if line.strip() not in known]
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
    torn = f"words may be torn apart on {plural(visual, 'page')}, drawn letter by letter from right"
    said = (*warnings, *([f"{torn} to left."] if visual else ()), *ocr.warnings, *album.warnings)
    lost = (damaged + garbled) / max(len(texts), 1)
    return Converted("".join(texts), starts, said, album.pictures, lost)


def _mark(album: Album, page: pdfium.PdfPage, number: int, start: int) -> list[str]:
    """Take the pictures of a page that are large enough to show something; return their marks.

    A page that is a picture as a whole needs no mark: `start` is its offset in the text, or -1.
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
    """Return the pixels of a picture of a PDF."""
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
_PROSE = 0.75
"""Share of the lines of prose, one below the other, that end where the next word had no room."""
_FULL = 0.9
"""Share of the width of a column that a full line has: who wraps may count letters."""
_WORDS = 3
"""Words in a line of prose."""


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
    lines = text.split("\r\n")
    starts = accumulate((len(line) + 2 for line in lines), initial=0)
    rows = [_cut_at_gap(page, line, start) for line, start in zip(lines, starts, strict=False)]
    boxes = [box for row in rows for box in row]
    begun = [[not box.text[:1].islower() for box in row] for row in rows if len(row) > 1]
    joint, most = sum(map(all, begun)), sum(map(any, begun))
    is_table = joint >= _LEAST_CELLS and joint >= _PROSE * most
    gap = None if is_table or len(begun) < _LEAST_ROWS else find_gap(boxes)
    if gap is None:
        return text
    sides = ([box for box in boxes if (box.left >= gap) is right] for right in (False, True))
    inner = [[box for box in side if not box.left < gap < box.right] for side in sides]
    return "\r\n".join(order_lines(boxes)) if all(map(_is_wrapped, inner)) else text


def _cut_at_gap(page: pdfium.PdfTextPage, line: str, start: int) -> list[Box]:
    """Return a line, which begins at an offset, in one part or, at a wide gap, in two."""
    places = [(page.get_charbox(start + at), at) for at, sign in enumerate(line) if sign.strip()]
    gaps = ((two[0] - one[2], at) for (one, _), (two, at) in pairwise(places))
    width, cut = max(gaps, default=(0.0, 0))
    cut = cut if width >= _GUTTER else 0
    parts = [[found for found in places if (found[1] >= cut) is right] for right in (False, True)]
    return [
        Box(part[0][0][0], -max(box[3] for box, _ in part), part[-1][0][2], -part[0][0][1], said)
        for part, said in zip(parts, (line[:cut].rstrip(), line[cut:]), strict=True)
        if part
    ]


def _is_wrapped(lines: Sequence[Box]) -> bool:
    words = sum(len(line.text.split()) for line in lines)
    first, last = min(line.left for line in lines), max(line.right for line in lines)
    room = first + _FULL * (last - first)
    full = inner = 0
    for line, following in pairwise(lines):
        word = len(following.text.split(maxsplit=1)[0]) + 1
        full += line.right + word * (line.right - line.left) / len(line.text) > room
        inner += following.text[:1].islower()
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


def _remarks(document: pdfium.PdfDocument, page: pdfium.PdfPage, text: str) -> Iterator[str]:
    """Yield the filled fields of forms, each with its name, and remarks that are not in the text.

    Others, links apart, are empty, since they may draw something. What marks words, such as a
    highlight, may repeat these in place of a remark.
    """
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        mark = raw.FPDFPage_GetAnnot(page, number)
        kind = raw.FPDFAnnot_GetSubtype(mark)
        if kind == raw.FPDF_ANNOT_WIDGET:
            yield _field(document.formenv, mark) if document.formenv is not None else ""
        elif kind not in {raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP}:
            said = _string(raw.FPDFAnnot_GetStringValue, mark, b"Contents")
            yield said if " ".join(said.split()) not in " ".join(text.split()) else ""
        raw.FPDFPage_CloseAnnot(mark)


_CHOSEN = {raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON}
_BUTTON, _SIGNATURE = raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_SIGNATURE


def _field(form: pdfium.PdfFormEnv, mark: object) -> str:
    name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, mark)
    name = name or _string(raw.FPDFAnnot_GetFormFieldName, form, mark)
    kind = raw.FPDFAnnot_GetFormFieldType(form, mark)
    value = _string(raw.FPDFAnnot_GetFormFieldValue, form, mark)
    if kind in _CHOSEN:
        is_chosen = raw.FPDFAnnot_IsChecked(form, mark)
        chosen = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, mark) or "checked"
        value = chosen if is_chosen else ""
    return f"{name}: {value}" if value and kind not in {_BUTTON, _SIGNATURE} else ""


def _string(function: Callable[..., int], *arguments: object) -> str:
    """Return the UTF-16 string that a function of PDFium writes."""
    size = function(*arguments, None, 0)
    buffer = (ctypes.c_ushort * (size // 2 + 1))()
    function(*arguments, buffer, size)
    text = bytes(buffer)[: max(size - 2, 0)].decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _picture_share(page: pdfium.PdfPage) -> float:
    """Return the share of a page that its largest picture covers."""
    edges = (picture.get_bounds() for picture in pictures(page))
    areas = ((right - left) * (top - bottom) for left, bottom, right, top in edges)
    return max(areas, default=0) / (page.get_width() * page.get_height() or 1)
