"""A picture as the text has it: a mark with its number, page and caption, and never its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

MARK = re.compile(r"\[picture (?P<number>\d{1,6})(?:, p\. (?P<page>\d{1,6}))?(?=[\]:,])")
"""Beginning of the mark of a picture, in a document or in notes that refer to it."""
_WHOLE_MARK = re.compile(rf"{MARK.pattern}(?:: [^\[\]\n]*)?\]")
_LONGEST_CAPTION = 400
"""Code points kept of a caption."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A reference to a picture of a document, which `place` finds in the file.

    The digest is that of its bytes, SHA-256 in hex, and the size is in pixels. The caption may be
    its alternative text; a page, or slide, counts from 1. `start` is the offset of its mark in the
    text, in code points, or that of its page if it is the page.
    """

    number: int
    place: str
    digest: str
    media_type: str
    width: int
    height: int
    caption: str = ""
    page: int | None = None
    start: int = 0

    @property
    def mark(self) -> str:
        """Text that stands for it: "[picture 2, p. 12: caption]"."""
        return write_mark(self.caption, self.number, self.page)


def write_mark(caption: str, number: int | None = None, page: int | None = None) -> str:
    """Return a mark on one line; without a number it is of a picture that nobody can look at.

    Brackets of the caption become parentheses, so that it cannot end the mark.
    """
    said = " ".join(caption.translate(_NO_BRACKETS).split())[:_LONGEST_CAPTION].rstrip()
    named = f"picture {number}" if number is not None else "picture"
    named += f", p. {page}" if page is not None else ""
    return f"[{named}: {said}]" if said else f"[{named}]"


_NO_BRACKETS = str.maketrans("[]", "()")


def numbers_in(text: str) -> list[int]:
    """Return the numbers of the pictures that a text refers to, each once, in order."""
    return [*dict.fromkeys(int(found["number"]) for found in MARK.finditer(text))]


def without_marks(text: str) -> str:
    """Return a text without the marks of pictures."""
    return _WHOLE_MARK.sub("", text)


def without_numbers(text: str) -> str:
    """Return a text in which marks have no numbers: the pictures are of a document within it."""
    return MARK.sub("[picture", text)


def has_ocr() -> bool:
    """Whether the `ocr` extra is installed, which reads the words in pictures."""
    return all(map(find_spec, ("onnxruntime", "rapidocr")))


_LONGEST_SIDE, _SHORTER_SIDE = 2048, 768
_TILE, _TILE_TOKENS, _BASE_TOKENS = 512, 170, 85
"""What OpenAI charges: the picture is scaled into 2,048 pixels square, then to 768 pixels on its
shorter side; each tile of 512 pixels costs 170 tokens, and the picture 85 ("Images and vision:
calculating costs", platform.openai.com/docs/guides/images-vision)."""
_AREA = {"anthropic-chat": 750}
"""Pixels a token for models that charge by area, by LangChain's name of their kind ("Vision:
calculate image costs", docs.anthropic.com)."""


def price(picture: Picture, model: BaseChatModel) -> int:
    """Return the tokens that a model charges for a picture.

    The model's own `picture_tokens(width, height)` decides, if it has one.
    """
    own = getattr(model, "picture_tokens", None)
    if own is not None:
        return int(own(picture.width, picture.height))
    longer = max(picture.width, picture.height)
    scale = min(1.0, _LONGEST_SIDE / longer)
    if area := _AREA.get(model._llm_type):  # noqa: SLF001 - public by LangChain's documentation
        return ceil(picture.width * picture.height * scale**2 / area)
    scale = min(scale, _SHORTER_SIDE / min(picture.width, picture.height))
    across, down = (ceil(side * scale / _TILE) for side in (picture.width, picture.height))
    return _BASE_TOKENS + _TILE_TOKENS * across * down
