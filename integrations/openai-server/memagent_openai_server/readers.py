r"""The reader of a server: its calls share slots, and its answer is sent as it is written.

The answer has no reasoning and no `\boxed{}`, and ends at a stop string or a limit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import AsyncCallbackHandler

from memagent_graph.errors import ModelError
from memagent_graph.prompts import ANSWER_PROMPT, PLAIN_ANSWER_PROMPT
from memagent_graph.readers.base import Answer, Reader, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import (
    CLOSING,
    OPENING,
    certain_part,
    is_tag,
    without_channels,
    without_reasoning,
)
from memagent_graph.readers.extractive import ExtractiveReader

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Coroutine, Sequence

    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Identity, Merge, Step, Update
    from memagent_graph.text.tokens import Tokenizer

T = TypeVar("T")

_SPEECH = "memagent_speech"
_UNSAID = Answer("remembered", "remembered")
_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
"""Providers' finish reasons for a reply that reached its limit."""
_BOX = "\\boxed{"


class ServedReader(Reader):
    r"""Reads like `reader`, but its answer is the whole reply, without a `\boxed{}`.

    If the reader's own answer prompt asks for a `\boxed{}`, it is kept; the answer is then only
    known when the reply is complete. Calls wait for a slot in the order in which they come, so that
    readings take turns. The built-in reader computes in a thread, one call at a time.

    Args:
        reader: the reader.
        config: settings of the reading.
        slots: most calls at once.
    """

    def __init__(self, reader: Reader, config: ReadingConfig, slots: int) -> None:
        self._reader = reader
        self._computes = isinstance(reader, ExtractiveReader)
        self._slots = asyncio.Semaphore(1 if self._computes else slots)
        self._speaker = _speaker(reader, config)
        self._habits = _Habits()
        self.model = getattr(reader, "model", None)
        self.shortens, self.standing, self.adds = reader.shortens, reader.standing, reader.adds
        self.shows_passages, self.concurrency = reader.shows_passages, reader.concurrency

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        """The identity of the reader, which may learn more about its model."""
        return self._reader.identity

    def config(self, speech: Speech | None) -> RunnableConfig:
        """Return the config of a reading, with an answer to `speech` or without one."""
        return {"configurable": {_SPEECH: speech}, "callbacks": [self._habits]}

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """Whether something is remembered of the user."""
        speech = _speech(config)
        return bool(speech and speech.known)

    async def prepare(self) -> Identity:
        """Prepare the reader."""
        return await self._reader.prepare()

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Read a chunk."""
        return await self._call(partial(self._reader.update, step, config=config))

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Merge memories."""
        return await self._call(partial(self._reader.merge, question, memories, config=config))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer into the run's `Speech`; without one, return a placeholder."""
        speech = _speech(config)
        if speech is None:  # the model itself will answer, with more than text
            return _UNSAID
        if speech.known:
            memory = replace(memory, text=f"{memory.text}\n\n{speech.known}".strip())
        speaker = self._speaker
        if speaker is None or not speech.listens:
            respond = (speaker or self._reader).respond
            answer = await self._call(partial(respond, question, memory, config=config))
            speech.begin()
            speech.hear(answer.text if speaker else answer.final)
        else:
            speech.begin(headless=self._habits.may_begin_in_thought)
            speak = partial(speaker.speak, question, memory, speech.hear, config=config)
            answer = await self._call(speak)
            if not answer.usage.output_tokens:  # stopped before the provider reported the usage
                count = speech.counter.count
                usage = Usage(1, count(question + memory.text), count(answer.text))
                answer = replace(answer, usage=usage)
        speech.end(answer.finish_reason)
        return replace(answer, final=speech.text)

    async def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._slots:
            if self._computes:
                return await asyncio.to_thread(lambda: asyncio.run(call()))
            return await call()


class _Habits(AsyncCallbackHandler):
    """Learns from complete replies whether a model begins within its reasoning."""

    def __init__(self) -> None:
        self.may_begin_in_thought = True
        self._known = False

    async def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        found = begins_in_thought(response.generations[0][0].text)
        if found or not self._known:
            self.may_begin_in_thought, self._known = found, True


def _speech(config: RunnableConfig | None) -> Speech | None:
    found: Speech | None = (config or {}).get("configurable", {}).get(_SPEECH)
    return found


def _speaker(reader: Reader, config: ReadingConfig) -> ChatReader | None:
    if not isinstance(reader, ChatReader):
        return None
    prompts = reader.prompts
    if prompts.answer == ANSWER_PROMPT:
        prompts = prompts.model_copy(update={"answer": PLAIN_ANSWER_PROMPT})
    if "\\boxed" in prompts.answer:
        return None
    return ChatReader(reader.model, prompts=prompts, config=config, name=reader.identity.name)


@dataclass
class Speech:
    """One answer, over all attempts of the model, each of which `begin` begins.

    Attributes:
        counter: counts tokens.
        stop: strings that end the answer and are not part of it.
        limit: most tokens; None for no limit.
        streams: whether pieces are sent to the client.
        known: remembered facts about the user, which the answer may use as well.
        write: sends a piece.
        sent: the text sent so far, which cannot be taken back.
        finish_reason: "stop" or "length".
        text: the certain part of the answer in this attempt.
    """

    counter: Tokenizer
    stop: tuple[str, ...] = ()
    limit: int | None = None
    streams: bool = False
    known: str = ""
    write: Callable[[str], object] | None = None
    sent: str = ""
    finish_reason: str = "stop"
    text: str = ""

    @property
    def listens(self) -> bool:
        """Whether the reply must be followed while it is written."""
        return self.streams or bool(self.stop) or self.limit is not None

    def begin(self, *, headless: bool = False) -> None:
        """Begin an attempt.

        Args:
            headless: whether the reply may begin within reasoning that the chat template opened.
                Then nothing is certain until the reasoning is closed.
        """
        self.text = self._reply = ""
        self._headless, self._strays = headless, False
        self._tokens = self._counted = 0
        self._reason: str | None = None

    def hear(self, piece: str) -> bool:
        """Take the next piece of the reply; return False if no more is needed."""
        self._reply += piece
        text, unsure = self._certain_part(), max(map(len, self.stop), default=1) - 1
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
        if self._strays or len(self.text) < len(self.sent):
            raise ModelError("The model broke off within its answer, and then began another one.")
        ended = "length" if reason in _CUT_OFF else "stop"
        self.finish_reason = self._reason or ended

    def _certain_part(self) -> str:
        reply = self._reply.lstrip()
        closed = _closing(reply, whole=False)
        if closed is None:
            return "" if self._headless else certain_part(reply, boxed=False)
        opened = OPENING.search(reply, 0, closed.start())
        return certain_part(reply[0 if opened else closed.end() :], boxed=False)

    def _say(self, text: str, unsure: int) -> None:
        """Send the new part of the answer; its last characters may belong to a stop string."""
        ends = [at for word in self.stop if (at := text.find(word)) >= 0]
        self._reason = "stop" if ends else None
        sure = min(ends) if ends else len(text) - unsure
        # White space may turn out to end the answer.
        self.text = self._within_limit(text[: max(0, sure)].rstrip())
        if self.write is None:
            return
        if not self.text.startswith(self.sent):
            self._strays = not self.sent.startswith(self.text)
        elif new := self.text[len(self.sent) :]:
            self.write(new)
            self.sent = self.text

    def _within_limit(self, text: str) -> str:
        limit, counter = self.limit, self.counter
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
