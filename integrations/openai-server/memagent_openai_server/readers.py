"""The reader of a server: its calls share slots, and its answer is that of a chat."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import AsyncCallbackHandler

from memagent_graph.prompts import ANSWER_PROMPT, PLAIN_ANSWER_PROMPT
from memagent_graph.readers.base import Answer, Reader, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_openai_server.speech import Attempt, Speech, begins_in_thought

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Identity, Merge, Step, Update

T = TypeVar("T")

_SPEECH = "memagent_speech"
_UNSAID = Answer("remembered", "remembered")


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

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        """The identity of the reader."""
        return self._reader.identity

    @property
    def model(self) -> object:
        """The chat model of the reader; None if it has none."""
        return getattr(self._reader, "model", None)

    @property
    def shortens(self) -> bool:  # type: ignore[override]
        """See `Reader`."""
        return self._reader.shortens

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
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Merge memories."""
        merge = partial(self._reader.merge, question, query, memories, config=config)
        return await self._call(merge)

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
            reader, attempt = speaker or self._reader, Attempt(speech)
            answer = await self._call(partial(reader.respond, question, memory, config=config))
            attempt.hear(answer.text if speaker else answer.final)
        else:
            attempt = Attempt(speech, headless=self._habits.may_begin_in_thought)
            speak = partial(speaker.speak, question, memory, attempt.hear, config=config)
            answer = await self._call(speak)
            if not answer.usage.output_tokens:  # stopped before the provider reported the usage
                count = speech.counter.count
                usage = Usage(1, count(question + memory.text), count(answer.text))
                answer = replace(answer, usage=usage)
        attempt.end(answer.finish_reason)
        return replace(answer, final=attempt.text)

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
