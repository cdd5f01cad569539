"""An answer as it is sent: up to a stop string and a token limit, streamed in pieces or whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.errors import ModelError
from memagent_openai_server.chat.spoken import Boxes, Thoughts

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.text.tokens import Tokenizer

_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
"""Providers' finish reasons for a reply that reached its limit."""


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
