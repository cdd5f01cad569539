r"""An answer as it is sent: without reasoning and `\boxed{}`, up to a stop string and a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError
from memagent_graph.readers.completion import (
    CLOSING,
    OPENING,
    certain_part,
    is_tag,
    without_channels,
    without_reasoning,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from memagent_graph.text.tokens import Tokenizer

_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
"""Providers' finish reasons for a reply that reached its limit."""
_BOX = "\\boxed{"


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
        headless: whether the reply may begin within reasoning that the chat template opened. Then
            nothing is certain until the reasoning is closed.

    Attributes:
        text: the certain part of the answer.
    """

    def __init__(self, speech: Speech, *, headless: bool = False) -> None:
        self.text = ""
        self._speech = speech
        self._headless = headless
        self._reply = ""
        self._tokens = self._counted = 0
        self._reason: str | None = None
        self._strays = False

    def hear(self, piece: str) -> bool:
        """Take the next piece of the reply; return False if no more is needed."""
        self._reply += piece
        text, unsure = self._certain_part(), max(map(len, self._speech.stop), default=1) - 1
        at = text.rfind("\\")
        text = text[:at] if at >= 0 and _BOX.startswith(text[at:]) else text
        self._say(_unbox(text), unsure)
        return self._reason is None and not self._strays

    def end(self, reason: str | None) -> None:
        """Take the end of the reply.

        Args:
            reason: the provider's finish reason.

        Raises:
            ModelError: The answer differs from what was sent already.
        """
        if self._reason is None and not self._strays:
            self._say(_unbox(without_reasoning(without_channels(self._reply))).strip(), 0)
        if self._strays or len(self.text) < len(self._speech.sent):
            raise ModelError("The model broke off within its answer, and then began another one.")
        ended = "length" if reason in _CUT_OFF else "stop"
        self._speech.finish_reason = self._reason or ended

    def _certain_part(self) -> str:
        reply = self._reply.lstrip()
        closed = _closing(reply, whole=False)
        if closed is None:
            return "" if self._headless else certain_part(reply, boxed=False)
        opened = OPENING.search(reply, 0, closed.start())
        return certain_part(reply[0 if opened else closed.end() :], boxed=False)

    def _say(self, text: str, unsure: int) -> None:
        """Send the new part of the answer; its last characters may belong to a stop string."""
        ends = [at for word in self._speech.stop if (at := text.find(word)) >= 0]
        self._reason = "stop" if ends else None
        sure = min(ends) if ends else len(text) - unsure
        # White space may turn out to end the answer.
        self.text = self._within_limit(text[: max(0, sure)].rstrip())
        speech = self._speech
        if speech.write is None:
            return
        if not self.text.startswith(speech.sent):
            self._strays = not speech.sent.startswith(self.text)
        elif new := self.text[len(speech.sent) :]:
            speech.write(new)
            speech.sent = self.text

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


def begins_in_thought(reply: str) -> bool:
    """Whether a complete reply closes reasoning that it did not open."""
    closed = _closing(reply, whole=True)
    return closed is not None and not OPENING.search(reply, 0, closed.start())


def _closing(reply: str, *, whole: bool) -> re.Match[str] | None:
    """The first tag that closes reasoning; None if there is none, or it may turn out to be text."""
    return next((tag for tag in CLOSING.finditer(reply) if is_tag(reply, tag, whole=whole)), None)


def _unbox(text: str) -> str:
    r"""Remove the `\boxed{` and `}` around an answer, which some models have learned to write."""
    parts, at = list[str](), 0
    while (start := text.find(_BOX, at)) >= 0:
        parts.append(text[at:start])
        at, depth = start + len(_BOX), 1
        for end in range(at, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                break
        else:
            end = len(text)
        parts.append(text[at:end])
        at = end + 1
    return "".join([*parts, text[at:]])
