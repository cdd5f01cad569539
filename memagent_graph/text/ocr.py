"""Read pages of a PDF that have no text layer by OCR, where the `ocr` extra is installed.

This runs in the process that converts documents.
"""

from __future__ import annotations

from functools import cache
from math import inf, prod
from statistics import mean, median
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pypdfium2 import raw

from memagent_graph.text.formats import has_ocr
from memagent_graph.text.source import ENDS_AT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pypdfium2 as pdfium
    from numpy.typing import NDArray

_SCALE = 200 / 72
"""Pixels per point at which a page is drawn: 200 dots per inch."""

_MOST_SIDE = 4000
"""Longest side of a drawn page, in pixels."""

_MOST_PIXELS = 80_000_000
"""Pixels of a picture above which its page is not drawn: unpacking it would take 320 MB."""

_PAGE_SECONDS = 10.0
"""Time that is assumed for the first page, in seconds; the slowest one counts from then on."""

_INK = 48
"""Difference from the colour of the paper that is ink, of 255."""

_MARGIN = 24
"""Paper that is left round the ink, in pixels."""

_SURE = 0.92
"""Mean score of a page below which its words are doubtful; Cyrillic and Greek are below it."""

_CROSSING = 0.2
"""Share of boxes that may stand across the gap between two columns, such as headings."""

_PROSE = 6.0
"""Width of a line of prose, in heights; cells of tables are shorter."""

_COLUMN_ROWS = 4
"""Least lines of a column."""


class Box(NamedTuple):
    """A line that was recognized, with its edges in pixels from above left."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


class PageReader:
    """Reads pages of one document while there is time."""

    def __init__(self) -> None:
        self._slowest = _PAGE_SECONDS
        self._pages: dict[str, list[int]] = {}

    def read(self, page: pdfium.PdfPage, number: int) -> str:
        """Return the text of a page; "" where there is none, or it was not reached."""
        if not has_ocr():
            return ""
        if any(prod(picture.get_px_size()) > _MOST_PIXELS for picture in pictures(page)):
            return self._note("did not run OCR on {}: a picture is too large.", number)
        begin = monotonic()
        if begin + self._slowest > ENDS_AT.get():
            said = "did not run OCR on {}: raise MEMAGENT_CONVERSION_SECONDS to read all pages."
            return self._note(said, number)
        scale = min(_SCALE, _MOST_SIDE / max(page.get_size()))
        drawn = page.render(scale=scale, may_draw_forms=False, draw_annots=False).to_numpy()
        drawn = _crop(drawn)
        if not drawn.size:  # blank
            return ""
        try:
            found = _engine()(drawn)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an older release wants to download its models
            return self._note(f"OCR failed on {{}} ({type(error).__name__}).", number)
        self._slowest = max(self._slowest, monotonic() - begin)
        if not found.txts:
            return ""
        self._note("words of {} come from OCR.", number)
        if mean(found.scores) < _SURE:
            said = "OCR is unsure of {}: it knows Latin, Chinese and Japanese script."
            self._note(said, number)
        corners = zip(found.boxes.tolist(), found.txts, strict=True)
        boxes = [_box([*zip(*points, strict=True)], text) for points, text in corners]
        return "\n".join(order_lines(boxes))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines on the pages that were read, or left out."""
        return tuple(
            said.format(f"page{'s' * (len(pages) > 1)} {', '.join(map(str, pages))}")
            for said, pages in self._pages.items()
        )

    def _note(self, said: str, number: int) -> str:
        self._pages.setdefault(said, []).append(number)
        return ""


@cache
def _engine() -> Any:
    """Return RapidOCR, with the models of its package."""
    from rapidocr import RapidOCR

    # One line at a time takes half of the memory of six, and is faster on one core.
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": _MOST_SIDE,
            "Global.use_cls": False,
            "Det.limit_type": "max",
            "Det.limit_side_len": 1280,
            "Rec.rec_batch_num": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        }
    )


def _crop(drawn: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the part of a page that is not blank: a few words of a large page are not detected."""
    light = drawn.min(axis=2).astype(np.int16)
    inked = np.abs(light - np.median(light)) > _INK
    down, across = inked.any(axis=1).nonzero()[0], inked.any(axis=0).nonzero()[0]
    if not down.size:
        return drawn[:0]
    top, left = max(down[0] - _MARGIN, 0), max(across[0] - _MARGIN, 0)
    return drawn[top : down[-1] + _MARGIN, left : across[-1] + _MARGIN]


def pictures(page: pdfium.PdfPage) -> Iterator[Any]:
    """Yield the pictures of a page."""
    yield from page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=4)


def _box(corners: Sequence[Sequence[float]], text: str) -> Box:
    across, down = corners
    return Box(min(across), min(down), max(across), max(down), text)


def order_lines(boxes: Sequence[Box]) -> list[str]:
    """Return lines of text from above, column by column; boxes side by side are one line."""
    gap = _find_gap(boxes)
    if gap is None:
        return [" ".join(box.text for box in row) for row in _rows(boxes)]
    across = sorted((box for box in boxes if box.left < gap < box.right), key=lambda box: box.top)
    lines, above = [], -inf
    for heading in (*across, None):
        below = heading.top if heading else inf
        band = [box for box in boxes if above <= box.top < below and box not in across]
        lines += order_lines([box for box in band if box.right <= gap])
        lines += order_lines([box for box in band if box.left >= gap])
        if heading:
            lines.append(heading.text)
            above = below
    return lines


def _find_gap(boxes: Sequence[Box]) -> float | None:
    """Return where a gap between two columns of prose ends; None if there is none."""
    best, fewest = None, _CROSSING * len(boxes)
    for gap in sorted({box.left for box in boxes})[1:]:
        left = [box for box in boxes if box.right <= gap]
        right = [box for box in boxes if box.left >= gap]
        crossing = len(boxes) - len(left) - len(right)
        if crossing < fewest and _is_prose(left) and _is_prose(right):
            best, fewest = gap, crossing
    return best


def _is_prose(boxes: Sequence[Box]) -> bool:
    if len(boxes) < _COLUMN_ROWS:
        return False
    return median((box.right - box.left) / (box.bottom - box.top) for box in boxes) > _PROSE


def _rows(boxes: Iterable[Box]) -> list[list[Box]]:
    """Return boxes that stand side by side together, from above and from left."""
    rows = list[list[Box]]()
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        if rows and rows[-1][0].bottom > (box.top + box.bottom) / 2:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: box.left) for row in rows]
