"""Find pictures of documents, within limits, and read words in them if OCR is installed."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from io import BytesIO
from math import inf, prod
from statistics import mean, median
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from pypdfium2 import raw

from memagent_graph.pictures import Picture, has_ocr, write_mark
from memagent_graph.templates import plural
from memagent_graph.text.source import ENDS_AT, Converted, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pypdfium2 as pdfium
    from numpy.typing import NDArray

MOST_PIXELS = 80_000_000  # pixels above which a picture is refused, since it unpacks to 320 MB
MOST_BYTES = 32 << 20  # bytes of a picture's file above which it is refused
_LONGEST_SIDE = 2048
"""Longest side of a picture as models get it, in pixels: they scale it down to that themselves."""
_FORMATS = ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"]
"""Formats that are read. SVG, EMF and WMF draw; PSD and ICO are rare."""
MEDIA_TYPES = {kind: f"image/{kind.lower()}" for kind in _FORMATS} | {"MPO": "image/jpeg"}
"""Media types of formats; what opens JPEG opens MPO, of cameras with two lenses."""
for _kind in ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP"):
    import_module(f"PIL.{_kind}ImagePlugin")  # which `Image.open` could not do where files are shut
Image.MAX_IMAGE_PIXELS = None  # the limits here are stricter, and fail instead of warning


class PictureError(ValueError):
    """A picture is broken, of another kind, or exceeds a limit; the message says which."""


def open_picture(content: bytes) -> Any:
    """Open a picture; nothing but its header is read."""
    if len(content) > MOST_BYTES:
        message = f"it has {len(content):,} bytes, more than {MOST_BYTES:,}"
        raise PictureError(message)
    try:
        opened = Image.open(BytesIO(content), formats=_FORMATS)
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError("it is broken, or not PNG, JPEG, GIF, WebP, BMP or TIFF") from error
    check_size(*opened.size)
    return opened


def check_size(width: int, height: int) -> None:
    """Check the size of a picture, in pixels."""
    if width < 1 or height < 1:
        raise PictureError("it has no pixels")
    if width * height > MOST_PIXELS:
        message = f"it has {width * height:,} pixels, more than {MOST_PIXELS:,}"
        raise PictureError(message)


def draw(opened: Any) -> Any:
    """Return an opened picture's first frame, upright, in RGB on white."""
    try:
        opened.seek(0)
        if opened.mode.startswith(("I", "F")):  # 16 bits and more: scaled by what there is
            low, high = opened.getextrema()
            scale = 255 / ((high - low) or 1)
            opened = opened.convert("F").point(lambda value: value * scale - low * scale)
            return opened.convert("L").convert("RGB")
        drawn = ImageOps.exif_transpose(opened)
        if drawn.has_transparency_data:
            paper = Image.new("RGBA", drawn.size, "white")
            paper.alpha_composite(drawn.convert("RGBA"))
            drawn = paper
        return drawn.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError("its pixels are broken, or its end is missing") from error


def encode(drawn: Any, media_type: str) -> tuple[str, str]:
    """Return (media type, base64) of a drawn picture as models get it.

    It is encoded anew: models get neither a place that a camera noted nor bytes that a parser of
    theirs might stumble over.
    """
    drawn.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    kept, kind = BytesIO(), "JPEG" if media_type == "image/jpeg" else "PNG"
    drawn.save(kept, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return MEDIA_TYPES[kind], b64encode(kept.getvalue()).decode()


_SCALE, _MOST_SIDE = 200 / 72, 4000
"""Pixels per point at which a page is drawn (200 dots per inch), and those of its longest side."""
_LEAST_SIDE, _LEAST_WORDS = 32, 20_000
"""Pixels of a side of a picture below which it is a bullet or rule, and in all, has no words."""
_PAGE_SECONDS = 10.0
"""Time that is assumed for the first page, in seconds; the slowest one counts from then on."""
_INK, _MARGIN = 48, 24
"""Difference from the colour of the paper that is ink, of 255, and pixels of paper round it."""
_SURE = 0.92
"""Mean score of a page below which its words are doubtful; Cyrillic and Greek are below it."""
_CROSSING = 0.2
"""Share of boxes that may stand across the gap between two columns, such as headings."""
_PROSE, _COLUMN_ROWS = 6.0, 4
"""Width of a line of prose, in heights (cells are shorter), and least lines of a column."""


class Box(NamedTuple):
    """A line that was recognized, with its edges in pixels from above left."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


class PageReader:
    """Reads pages of one document while there is time."""

    def __init__(self, noun: str = "page") -> None:
        self._noun = noun
        self._slowest = _PAGE_SECONDS
        self._pages: dict[str, list[int]] = {}
        self.is_done = False  # whether the last page has no words but those returned

    def read(self, page: pdfium.PdfPage, number: int) -> str:
        """Return the text of a page; "" where there is none, or it was not reached."""
        self.is_done = False
        if not has_ocr():
            return ""
        if any(prod(picture.get_px_size()) > MOST_PIXELS for picture in pictures(page)):
            return self._note("did not run OCR on {}: a picture is too large.", number)
        scale = min(_SCALE, _MOST_SIDE / max(page.get_size()))
        drawn = page.render(scale=scale, may_draw_forms=False, draw_annots=False).to_numpy()
        return self.read_pixels(drawn, number)

    def read_pixels(self, drawn: NDArray[np.uint8], number: int) -> str:
        """Return the words of pixels `[height, width, 3]`; "" where there are none."""
        if monotonic() + self._slowest > ENDS_AT.get():
            said = "did not run OCR on {}: raise MEMAGENT_CONVERSION_SECONDS to read all pages."
            return self._note(said, number)
        drawn, begin = _crop(drawn), monotonic()
        self.is_done = not drawn.size
        if self.is_done:  # blank
            return ""
        try:
            found = _engine()(drawn)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an older release wants to download its models
            return self._note(f"OCR failed on {{}} ({type(error).__name__}).", number)
        self._slowest = max(self._slowest, monotonic() - begin)
        self.is_done = True
        if not found.txts:
            return ""
        self._note("words of {} come from OCR.", number)
        if mean(found.scores) < _SURE:
            said = "OCR is unsure of {}: it knows Latin, Chinese and Japanese script."
            self._note(said, number)
        corners = np.asarray(found.boxes)
        edges = np.hstack([corners.min(axis=1), corners.max(axis=1)]).tolist()
        boxes = [Box._make((*at, text)) for at, text in zip(edges, found.txts, strict=True)]
        return "\n".join(order_lines(boxes))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines on the pages that were read, or left out."""
        return tuple(
            said.format(f"{self._noun}{'s' * (len(pages) > 1)} {', '.join(map(str, pages))}")
            for said, pages in self._pages.items()
        )

    def _note(self, said: str, number: int) -> str:
        self._pages.setdefault(said, []).append(number)
        return ""


class Album:
    """The pictures of one document, numbered as they are found.

    `unread` counts those without a number or words in the text, and `objects` the documents within
    the document that were not read. The `start` of a picture is set when the text is complete.
    """

    def __init__(self) -> None:
        self.pictures: list[Picture] = []
        self.unread = self.objects = 0
        self._refused, self.said = Counter[str](), list[str]()  # lines on the rest
        self._words = PageReader("picture")

    def add(self, content: bytes | None, place: str, caption: str = "", page: int = 0) -> str:
        """Take a picture, and return its mark; a picture that cannot be shown has no number.

        `place` finds it in the document, and the page, or slide, is from 1, or 0 without pages.
        """
        opened = None
        try:
            opened = open_picture(content) if content else None
        except PictureError as error:
            self._refused[str(error)] += 1
        if opened is None or content is None or min(opened.size) < _LEAST_SIDE:
            self.unread += opened is None
            return write_mark(caption) if caption else ""
        digest, kind = sha256(content).hexdigest(), MEDIA_TYPES[opened.format]
        about: Any = {"caption": caption, "page": page or None, "start": -1}
        mark = self.place(Picture(0, place, digest, kind, *opened.size, **about))
        words = self.words_of(partial(draw, opened))
        self.unread += not words
        return mark + words

    def place(self, found: Picture) -> str:
        """Number a picture, and return its mark; `start` is -1 if the mark stands in the text."""
        self.pictures.append(replace(found, number=len(self.pictures) + 1))
        return self.pictures[-1].mark

    def words_of(self, drawing: Callable[[], Any]) -> str:
        """Return what stands after the mark of the last picture: the words in it, if any."""
        last = self.pictures[-1]
        words = "" if last.width * last.height < _LEAST_WORDS else self.read(drawing)
        return f" (words in it: {' '.join(words.split())})" if words else ""

    def read(self, drawing: Callable[[], Any]) -> str:
        """Return the words in the last picture; "" without any, or if its pixels are broken."""
        if not has_ocr():
            return ""
        try:
            drawn = drawing()
        except PictureError as error:
            self._refused[str(error)] += 1
            return ""
        drawn.thumbnail((_MOST_SIDE, _MOST_SIDE))
        return self._words.read_pixels(np.asarray(drawn), len(self.pictures))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines on what was not read, on pictures that were refused, and on words from OCR."""
        counted = self._refused.items()
        refused = (f"refused {plural(count, 'picture')}: {why}." for why, count in counted)
        unread = warn_of(picture=self.unread, embedded_object=self.objects)
        return (*unread, *refused, *self._words.warnings, *self.said)


def read_picture(content: bytes) -> Converted:
    """Read a file that is a picture: its mark, and the words in it."""
    opened, album = open_picture(content), Album()
    digest, drawn = sha256(content).hexdigest(), draw(opened)  # raises if it is cut off
    mark = album.place(Picture(0, "", digest, MEDIA_TYPES[opened.format], *opened.size))
    words = album.read(lambda: drawn)
    return Converted("\n\n".join(filter(None, [mark, words])), (), album.warnings, album.pictures)


@cache
def _engine() -> Any:
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


def order_lines(boxes: Sequence[Box]) -> list[str]:
    """Return lines of text from above, column by column; boxes side by side are one line."""
    gap = find_gap(boxes)
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


def find_gap(boxes: Sequence[Box]) -> float | None:
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
    return median(box.right - box.left - _PROSE * (box.bottom - box.top) for box in boxes) > 0


def _rows(boxes: Sequence[Box]) -> list[list[Box]]:
    rows = list[list[Box]]()
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        if rows and rows[-1][0].bottom > (box.top + box.bottom) / 2:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: box.left) for row in rows]
