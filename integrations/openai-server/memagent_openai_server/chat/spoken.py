r"""Filter reasoning and `\boxed{}` out of a reply, piece by piece while it is written."""

from __future__ import annotations

import re

from memagent_graph.readers.completion import (
    CLOSING,
    OPENING,
    is_tag,
    skip_channels,
    without_channels,
)

_OPENING = ("<think>", "<thinking>", "<reasoning>")
_LONGEST = len("</reasoning>") - 1
"""Longest incomplete tag, in characters."""
_BOX = "\\boxed{"


class Thoughts:
    """Removes a model's reasoning.

    Args:
        headless: whether the reply may begin within reasoning that the chat template opened. Then
            nothing is certain until the reasoning is closed.
    """

    def __init__(self, *, headless: bool) -> None:
        self._headless = headless
        self._end: re.Pattern[str] | None = CLOSING if headless else None
        self._head: str | None = ""  # what it begins with, while that may be reasoning
        self._held = ""
        self._before = ""  # the last character that was said
        self._begins = True

    def feed(self, piece: str) -> str:
        """Take the next piece of the reply, and return the text that is now certain."""
        if self._head is not None:
            self._head += piece
            text = skip_channels(self._head)
            if text is None:
                return ""
            piece = self._begin_with(text)
        return self._feed(piece, whole=False)

    def _begin_with(self, text: str) -> str:
        """The text of its head, with the white space that may be before more."""
        head, self._head = self._head or "", None
        return text and text + head[len(head.rstrip()) :]

    def _feed(self, piece: str, *, whole: bool) -> str:
        looked = max(0, len(self._held) - _LONGEST - 1)
        self._held += piece
        said = ""
        while True:
            if self._end is not None:
                closed = self._closed(looked)
                if closed is None:
                    if not self._headless:
                        self._held = self._held[-_LONGEST:]
                    return said
                if not (self._headless and OPENING.search(self._held, 0, closed.start())):
                    self._held = self._held[closed.end() :]
                    self._before = ">"
                self._headless, self._end = False, None
            opened, sure = self._opened(whole=whole)
            said += self._say(sure)
            if opened is None:
                return said
            self._held, self._before = self._held[len(opened[0]) :], ">"
            self._end, looked = re.compile(f"</{opened[1]}>"), 0

    def _closed(self, looked: int) -> re.Match[str] | None:
        """The tag that ends this thought; one that a headless reply merely names does not."""
        found = (self._end or CLOSING).finditer(self._held, looked)
        if not self._headless:
            return next(found, None)
        return next((tag for tag in found if is_tag(self._held, tag, whole=False)), None)

    def _opened(self, *, whole: bool) -> tuple[re.Match[str] | None, int]:
        """The tag that opens the next thought, and the characters that are certain before it."""
        seen = self._before + self._held
        for tag in OPENING.finditer(seen, len(self._before)):
            begins = self._begins and not seen[len(self._before) : tag.start()].strip()
            opens = is_tag(seen, tag, begins=begins, whole=whole)
            if opens is not False:
                return (tag if opens else None), tag.start() - len(self._before)
        return None, len(self._held) - (0 if whole else _overlap(self._held, _OPENING))

    def _say(self, size: int) -> str:
        said, self._held = self._held[:size], self._held[size:]
        self._before = said[-1:] or self._before
        self._begins = self._begins and not said.strip()
        return said

    def finish(self) -> str:
        """Take the end of the reply, and return the rest of the text."""
        rest = self._begin_with(without_channels(self._head or ""))
        if self._headless:  # no thought was closed, so that none was open
            self._headless, self._end = False, None
        return "" if self._end is not None else self._feed(rest, whole=True)


class Boxes:
    r"""Removes the `\boxed{` and `}` around an answer, which some models have learned to write."""

    def __init__(self) -> None:
        self._depth = 0
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece of the reply, and return the text that is now certain."""
        text, said, self._held = self._held + piece, [], ""
        at = 0
        while at < len(text):
            if self._depth == 0:
                start = text.find(_BOX, at)
                if start < 0:
                    sure = len(text) - _overlap(text, (_BOX,))
                    said.append(text[at:sure])
                    self._held = text[sure:]
                    break
                said.append(text[at:start])
                at, self._depth = start + len(_BOX), 1
                continue
            self._depth += (text[at] == "{") - (text[at] == "}")
            if self._depth:
                said.append(text[at])
            at += 1
        return "".join(said)

    def finish(self) -> str:
        """Take the end of the reply, and return the rest of the text."""
        return self._held


def begins_in_thought(reply: str) -> bool:
    """Whether a complete reply closes reasoning that it did not open."""
    closed = next((tag for tag in CLOSING.finditer(reply) if is_tag(reply, tag)), None)
    return closed is not None and not OPENING.search(reply, 0, closed.start())


def _overlap(text: str, words: tuple[str, ...]) -> int:
    """Characters at the end of `text` with which one of `words` may begin."""
    longest = max(map(len, words)) - 1
    return next(
        (
            size
            for size in range(min(longest, len(text)), 0, -1)
            if any(word.startswith(text[-size:]) for word in words)
        ),
        0,
    )
