"""A reader that reads like another reader, and answers like a chat."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackHandler

from memagent_graph.prompts import ANSWER_PROMPT, PLAIN_ANSWER_PROMPT
from memagent_graph.readers.base import Answer, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_openai_server.chat.speech import Attempt, Speech
from memagent_openai_server.chat.spoken import begins_in_thought
from memagent_openai_server.readers import Around

if TYPE_CHECKING:
    from langchain_core.outputs import LLMResult
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Reader

_SPEECH = "memagent_speech"
_UNSAID = Answer("remembered", "remembered")


class Answerer(Around):
    r"""Reads like `reader`, but its answer is the whole reply, without a `\boxed{}`.

    If the reader's own answer prompt asks for a `\boxed{}`, it is kept; the answer is then only
    known when the reply is complete.

    Args:
        reader: the reader.
        config: settings of the reading.
    """

    def __init__(self, reader: Reader, config: ReadingConfig) -> None:
        super().__init__(reader)
        self._speaker = _speaker(reader, config)
        self._habits = _Habits()

    def config(self, speech: Speech | None) -> RunnableConfig:
        """Return the config of a reading, with an answer to `speech` or without one."""
        return {"configurable": {_SPEECH: speech}, "callbacks": [self._habits]}

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """Whether something is remembered of the user."""
        speech: Speech | None = (config or {}).get("configurable", {}).get(_SPEECH)
        return bool(speech and speech.known)

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer into the run's `Speech`; without one, return a placeholder."""
        speech: Speech | None = (config or {}).get("configurable", {}).get(_SPEECH)
        if speech is None:  # the model itself will answer, with more than text
            return _UNSAID
        if speech.known:
            memory = replace(memory, text=f"{memory.text}\n\n{speech.known}".strip())
        speaker = self._speaker
        if speaker is None or not speech.listens:
            reader, attempt = speaker or self._reader, Attempt(speech)
            answer = await reader.respond(question, memory, config=config)
            attempt.hear(answer.text if speaker else answer.final)
        else:
            attempt = Attempt(speech, headless=self._habits.may_begin_in_thought)
            answer = await speaker.speak(question, memory, attempt.hear, config=config)
            if not answer.usage.output_tokens:  # stopped before the provider reported the usage
                count = speech.counter.count
                usage = Usage(1, count(question + memory.text), count(answer.text))
                answer = replace(answer, usage=usage)
        attempt.end(answer.finish_reason)
        return replace(answer, final=attempt.text)


class _Habits(AsyncCallbackHandler):
    """Learns from complete replies whether a model begins within its reasoning."""

    def __init__(self) -> None:
        self.may_begin_in_thought = True
        self._known = False

    async def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        found = begins_in_thought(response.generations[0][0].text)
        if found or not self._known:
            self.may_begin_in_thought, self._known = found, True


def _speaker(reader: Reader, config: ReadingConfig) -> ChatReader | None:
    if not isinstance(reader, ChatReader):
        return None
    prompts = reader.prompts
    if prompts.answer == ANSWER_PROMPT:
        prompts = prompts.model_copy(update={"answer": PLAIN_ANSWER_PROMPT})
    if "\\boxed" in prompts.answer:
        return None
    return ChatReader(reader.model, prompts=prompts, config=config, name=reader.identity.name)
