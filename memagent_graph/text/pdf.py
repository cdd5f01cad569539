"""Read PDF files with PDFium: text, values of forms, remarks."""

from __future__ import annotations

import ctypes
import re
from functools import partial
from hashlib import sha256
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pypdfium2 as pdfium
from pypdfium2 import raw

from memagent_graph.pictures import Picture
from memagent_graph.text import ocr
from memagent_graph.text.conversion import convert_within, write_attachments
from memagent_graph.text.notation import count_words, raise_text, write_link, write_scripts
from memagent_graph.text.source import Converted, PasswordError, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_END = "\n\n\f"  # end of a page
_BROKEN = re.compile("([^\\W\\d_])[\ufffe\x02]([a-zß-öø-ÿ])")
"""A word that a hyphen breaks at the end of a line; others keep their hyphen."""
_FIGURE_SHARE, _PICTURE_SHARE, _SCAN_SHARE = 0.02, 0.1, 0.7
"""Shares of a page from which a picture has a mark, may hold text, and is the page, scanned."""
_NO_LETTER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
"""A code instead of a letter, as in a font that does not say which letters it draws."""
_GARBLED_SHARE = 0.1  # share of such codes above which the text of a page is not what it shows
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
    texts, reader, album = list[str](), ocr.PageReader(), ocr.Album()
    files = map(document.get_attachment, range(document.count_attachments()))
    attached = [convert_within(one.get_name(), bytes(one.get_data())) for one in files]
    damaged = garbled = pictured = unseen = 0
    for number in range(len(document)):
        try:
            page = document[number]
        except pdfium.PdfiumError:
            damaged += 1
            texts.append(_END)
            continue
        text = _read_page(page)
        picture = max((_share_of(found, page) for found in ocr.pictures(page)), default=0)
        is_page = picture > _SCAN_SHARE
        is_garbled = len(_NO_LETTER.findall(text)) > _GARBLED_SHARE * len(text)
        if not text or is_garbled or (is_page and len(text) < _STAMP):
            scanned = reader.read(page, number + 1)
            unseen += not (text or reader.is_done) and _may_have_words(page, picture)
            stamps = [line for line in text.splitlines() if line.strip() not in scanned]
            if scanned:
                text, picture = "\n".join([scanned, *([] if is_garbled else stamps)]), 0
            garbled += is_garbled and not scanned
        pictured += bool(text) and picture > _PICTURE_SHARE
        remarks = [*_remarks(document, page, text)]
        if remarks:
            # What they draw, such as signatures; `page.flatten` refuses one without forms.
            raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
            page.close()
            page = document[number]
            drawn = [line for line in _read_page(page).splitlines() if line.strip() not in text]
            remarks = [*filter(None, remarks)]
            known = count_words("\n".join(remarks))
            remarks += [line for line in drawn if not count_words(line) <= known]
            text = "\n".join([text, *[""][: len(remarks)], *remarks]).strip("\n")
        marks = _mark(album, page, number + 1, sum(map(len, texts)) if is_page else -1)
        blocks = [text, *([] if is_page else marks), *_links(document, page)]
        texts.append("\n\n".join(filter(None, blocks)) + _END)
        page.close()  # frees memory
    starts = [0, *accumulate(map(len, texts[:-1]))] if texts else []
    warnings = warn_of(
        damaged_page=damaged, page_whose_fonts_name_no_letters=garbled, page_with_a_picture=pictured
    )
    added, unread, missing = write_attachments(attached)
    said = (*warnings, *unread, *reader.warnings, *album.warnings)
    lost = (damaged + garbled + unseen + missing) / max(len(texts) + len(attached), 1)
    return Converted("".join([*texts, *added]), starts, said, album.pictures, lost)


def _may_have_words(page: pdfium.PdfPage, picture: float) -> bool:
    found = page.get_objects(filter=[raw.FPDF_PAGEOBJ_TEXT], max_depth=4)
    return picture > _PICTURE_SHARE or next(found, None) is not None


def _mark(album: ocr.Album, page: pdfium.PdfPage, number: int, start: int) -> list[str]:
    """Take the pictures of a page that are large enough to show something; return their marks.

    A page that is a picture as a whole needs no mark: `start` is its offset in the text, or -1.
    """
    marks = []
    for at, found in enumerate(ocr.pictures(page)):
        across, down = found.get_px_size()
        if _share_of(found, page) < _FIGURE_SHARE or not 0 < across * down <= ocr.MOST_PIXELS:
            continue
        digest = sha256(bytes(found.get_data())).hexdigest()
        place, kind = f"{number - 1},{at}", "image/png"
        mark = album.place(Picture(0, place, digest, kind, across, down, "", number, start))
        marks.append(mark + ("" if start >= 0 else album.words_of(partial(_draw, found))))
    return marks


def draw_picture(content: bytes, place: str) -> Any:
    """Return the pixels of a picture of a PDF."""
    number, at = map(int, place.split(","))
    document = pdfium.PdfDocument(content)
    found = [*ocr.pictures(document[number])] if number < len(document) else []
    if at >= len(found):
        raise ocr.PictureError("it is no longer in the document")
    return _draw(found[at])


def _draw(picture: pdfium.PdfImage) -> Any:
    ocr.check_size(*picture.get_px_size())
    return ocr.draw(picture.get_bitmap(render=True, scale_to_original=True).to_pil())


def _read_page(page: pdfium.PdfPage) -> str:
    found = page.get_textpage()
    text = found.get_text_range().translate(dict.fromkeys(range(0x0E, 0x15), "\ufffd"))
    text = write_scripts(_WORD.sub(partial(_raise_figures, found), text))
    found.close()
    text = _BROKEN.sub(r"\1\2", text.replace("\r\n", "\n"))
    text = text.replace("\ufffe", "-\n").replace("\x02", "-\n")
    return text.replace("\0", "").replace("\f", "\n").strip()


_WORD = re.compile(r"(\S+)(\r\n(?=.))?")
_FIGURE = re.compile("[-+\u2212\\d]")
_SMALLER, _HIGHER = 0.95, 0.15
"""Share of a sign's size below which a figure is small, and by which one is higher or lower."""
_LINE = 0.8  # share of a sign's size by which another line is lower


class _Sign(NamedTuple):
    """Where a sign stands on a page, its height, in points, and its number; 0 if unknown."""

    x: float = 0.0
    y: float = 0.0
    size: float = 0.0
    number: int = 0


def _raise_figures(page: pdfium.PdfTextPage, found: re.Match[str]) -> str:
    """Put figures above or below the rest, after which PDFium ends a line, between signs."""
    word, line_end = found[1], found[2] or ""
    begin, end = found.span(1)
    around = found.string[max(begin - 1, 0) : begin] + found.string[end : end + 1]
    is_line = len(word) > 1 and word.isascii() and not around.strip("\r\n")
    if not (is_line or any(map(str.isdigit, word[1:]))):
        return found[0]
    signs = [_sign_at(page, found.string, at) for at in range(*found.span(1))]
    if is_line and _is_column(page, signs):  # not joined, as vertical script is
        return "\n".join(word) + line_end
    base, levels = signs[0], list[int]()
    for sign in signs:
        levels.append(_level_of(base, sign))
        base = base if levels[-1] else sign
    if levels[-1] and line_end and _is_beside(base, _sign_at(page, found.string, found.end())):
        line_end = ""
    parts = list[str]()
    for level, run in groupby(zip(levels, word, strict=True), key=itemgetter(0)):
        part = "".join(letter for _, letter in run)
        parts.append(raise_text(part, level) if _FIGURE.search(part) else part)
    return "".join(parts) + line_end


def _is_column(page: pdfium.PdfTextPage, signs: list[_Sign]) -> bool:
    pairs = pairwise(signs)
    is_lower = all(low.size and low.y < high.y - high.size * _LINE for high, low in pairs)
    return is_lower and not raw.FPDFText_GetCharAngle(page, signs[-1].number)


def _sign_at(page: pdfium.PdfTextPage, text: str, at: int) -> _Sign:
    number = raw.FPDFText_GetCharIndexFromTextIndex(page, at)
    if raw.FPDFText_GetUnicode(page, number) != ord(text[at]):
        return _Sign()
    x, y = ctypes.c_double(), ctypes.c_double()
    raw.FPDFText_GetCharOrigin(page, number, x, y)
    _, bottom, _, top = page.get_charbox(number, loose=True)
    return _Sign(x.value, y.value, top - bottom, number)


def _level_of(base: _Sign, sign: _Sign) -> int:
    """Return 1 if a sign is smaller and higher than the one before it, -1 if lower, or else 0."""
    rise, is_small = sign.y - base.y, sign.size < _SMALLER * base.size
    if base.x < sign.x and is_small and _HIGHER * base.size < abs(rise) < base.size:
        return 1 if rise > 0 else -1
    return 0


def _is_beside(base: _Sign, sign: _Sign) -> bool:
    most = _HIGHER * base.size
    is_level = abs(sign.y - base.y) < most and abs(sign.size - base.size) < most
    return base.x < sign.x and is_level


def _remarks(document: pdfium.PdfDocument, page: pdfium.PdfPage, text: str) -> Iterator[str]:
    """Yield fields of forms and remarks that the text lacks; "" for others that may draw."""
    for mark in _annotations(page):
        kind = raw.FPDFAnnot_GetSubtype(mark)
        if kind == raw.FPDF_ANNOT_WIDGET:
            yield _field(document.formenv, mark) if document.formenv is not None else ""
        elif kind not in {raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP}:
            said = _string(raw.FPDFAnnot_GetStringValue, mark, b"Contents")
            yield said if " ".join(said.split()) not in " ".join(text.split()) else ""


def _annotations(page: pdfium.PdfPage) -> Iterator[object]:
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        mark = raw.FPDFPage_GetAnnot(page, number)
        yield mark
        raw.FPDFPage_CloseAnnot(mark)


def _links(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> Iterator[str]:
    found, text, edges = dict[str, str](), page.get_textpage(), raw.FS_RECTF()
    for mark in _annotations(page):
        action = raw.FPDFLink_GetAction(raw.FPDFAnnot_GetLink(mark))
        size = raw.FPDFAction_GetURIPath(document, action, None, 0)
        address = ctypes.create_string_buffer(size)
        if size and raw.FPDFAnnot_GetRect(mark, edges):
            raw.FPDFAction_GetURIPath(document, action, address, size)
            said = text.get_text_bounded(edges.left, edges.bottom, edges.right, edges.top)
            name = address.value.decode("utf-8", "replace")
            found[name] = " ".join([*found.get(name, "").split(), *said.split()])  # of its lines
    text.close()
    links = ((write_link(said, name), said) for name, said in found.items())
    yield from (link for link, said in links if link != said)


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
    size = function(*arguments, None, 0)
    buffer = (ctypes.c_ushort * (size // 2 + 1))()
    function(*arguments, buffer, size)
    text = bytes(buffer)[: max(size - 2, 0)].decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _share_of(picture: pdfium.PdfImage, page: pdfium.PdfPage) -> float:
    left, bottom, right, top = picture.get_bounds()
    area: float = page.get_width() * page.get_height() or 1
    return float((right - left) * (top - bottom) / area)
