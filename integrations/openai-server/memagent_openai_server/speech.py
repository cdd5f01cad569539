r"""An answer as it is sent: without reasoning and `\boxed{}`, up to a stop string and a limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError
from memagent_graph.readers.completion import (
    CLOSING,
    OPENING,
    is_tag,
    skip_channels,
    without_channels,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.text.tokens import Tokenizer

_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
"""Providers' finish reasons for a reply that reached its limit."""
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


@dataclass
class Speech:
    """One answer, over all attempts of the model.

    Attributes:
        counter: counts tokens.
        stop: strings that end the answer and are not part of it.
        limit: most tokens; None for no limit.
        streams: whether pieces are sent to the client.
        known: remembered facts about the user, which the answer may use as well.
        write: sends a piece.
        sent: the text sent so far, which cannot be taken back.
        finish_reason: "stop" or "length".
    """

    counter: Tokenizer
    stop: tuple[str, ...] = ()
    limit: int | None = None
    streams: bool = False
    known: str = ""
    write: Callable[[str], None] | None = None
    sent: str = ""
    finish_reason: str = "stop"

    @property
    def listens(self) -> bool:
        """Whether the reply must be followed while it is written."""
        return self.streams or bool(self.stop) or self.limit is not None


class Attempt:
    """One attempt of the model at an answer.

    Args:
        speech: the answer.
        headless: see `Thoughts`.

    Attributes:
        text: the certain part of the answer.
    """

    def __init__(self, speech: Speech, *, headless: bool = False) -> None:
        self.text = ""
        self._speech = speech
        self._thoughts, self._boxes = Thoughts(headless=headless), Boxes()
        self._unsure = max(map(len, speech.stop), default=1) - 1
        self._said = ""
        self._tokens = self._counted = 0
        self._reason: str | None = None
        self._strays = False

    def hear(self, piece: str) -> bool:
        """Take the next piece of the reply; return False if no more is needed."""
        self._add(self._boxes.feed(self._thoughts.feed(piece)))
        return self._reason is None and not self._strays

    def end(self, reason: str | None) -> None:
        """Take the end of the reply.

        Args:
            reason: the provider's finish reason.

        Raises:
            ModelError: The answer differs from what was sent already.
        """
        if self._reason is None and not self._strays:
            rest = self._boxes.feed(self._thoughts.finish()) + self._boxes.finish()
            self._add(rest, last=True)
        if self._strays or len(self.text) < len(self._speech.sent):
            raise ModelError("The model broke off within its answer, and then began another one.")
        ended = "length" if reason in _CUT_OFF else "stop"
        self._speech.finish_reason = self._reason or ended

    def _add(self, piece: str, *, last: bool = False) -> None:
        looked = max(0, len(self._said) - self._unsure)
        self._said += piece if self._said else piece.lstrip()
        found = (self._said.find(word, looked) for word in self._speech.stop)
        ends = [at for at in found if at >= 0]
        sure = min(ends) if ends else len(self._said) - (0 if last else self._unsure)
        self._reason = "stop" if ends else None
        text = self._said[: max(0, sure)].rstrip()  # white space may turn out to end the answer
        self._say(self._within_limit(text))

    def _within_limit(self, text: str) -> str:
        limit, counter = self._speech.limit, self._speech.counter
        # A byte is a token, an estimate two at most: most pieces need not be counted.
        if limit is None or self._tokens + 2 * len(text[self._counted :].encode()) <= limit:
            return text
        self._tokens, self._counted = counter.count(text), len(text)
        if self._tokens <= limit:
            return text
        self._reason = "length"
        return text[: max(counter.prefix(text, limit), len(self.text))]

    def _say(self, text: str) -> None:
        speech, self.text = self._speech, text
        if speech.write is None:
            return
        if text.startswith(speech.sent):
            if new := text[len(speech.sent) :]:
                speech.write(new)
                speech.sent = text
        else:
            self._strays = not speech.sent.startswith(text)
