r"""Filter reasoning and `\boxed{}` out of a reply, piece by piece while it is written."""

from __future__ import annotations

import re

_OPENED = re.compile(r"<(think|thinking|reasoning)>")
_CLOSED = re.compile(r"</(?:think|thinking|reasoning)>")
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
        self._end: re.Pattern[str] | None = _CLOSED if headless else None
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece of the reply, and return the text that is now certain."""
        looked = max(0, len(self._held) - _LONGEST)
        self._held += piece
        said = ""
        while True:
            if self._end is not None:
                closed = self._end.search(self._held, looked)
                if closed is None:
                    if not self._headless:
                        self._held = self._held[-_LONGEST:]
                    return said
                if not (self._headless and _OPENED.search(self._held, 0, closed.start())):
                    self._held = self._held[closed.end() :]
                self._headless, self._end = False, None
            opened = _OPENED.search(self._held)
            if opened is None:
                sure = len(self._held) - _overlap(self._held, _OPENING)
                said, self._held = said + self._held[:sure], self._held[sure:]
                return said
            said, self._held = said + self._held[: opened.start()], self._held[opened.end() :]
            self._end, looked = re.compile(f"</{opened[1]}>"), 0

    def finish(self) -> str:
        """Take the end of the reply, and return the rest of the text."""
        said = ""
        if self._headless:  # no thought was closed, so that none was open
            self._headless, self._end = False, None
            said = self.feed("")
        return said if self._end is not None else said + self._held


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
    closed = _CLOSED.search(reply)
    return closed is not None and not _OPENED.search(reply, 0, closed.start())


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
