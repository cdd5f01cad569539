"""A reader that answers as a chat does, while it reads as another reader does."""

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
    from memagent_graph.readers.base import Memory, Reader

_SPEECH = "memagent_speech"
_UNSAID = Answer("remembered", "remembered")


class Answerer(Around):
    r"""Reads as `reader` does. What it answers is not taken out of a box but said as it is.

    A reader with an answer prompt of its own that asks for a `\boxed{}` is left alone: its answer
    is known when its reply is whole.

    Args:
        reader: who reads.
        config: of the reading.
    """

    def __init__(self, reader: Reader, config: ReadingConfig) -> None:
        super().__init__(reader)
        self._speaker = _speaker(reader, config)
        self._habits = _Habits()

    def config(self, speech: Speech | None) -> RunnableConfig:
        """Of a reading that ends with an answer, or with none."""
        return {"configurable": {_SPEECH: speech}, "callbacks": [self._habits]}

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer as the run's `Speech` wants it; nothing where it has none."""
        speech: Speech | None = (config or {}).get("configurable", {}).get(_SPEECH)
        if speech is None:  # it goes to a model that is asked for more than a text
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
            if not answer.usage.output_tokens:  # it was ended before its provider said this
                count = speech.counter.count
                usage = Usage(1, count(question + memory.text), count(answer.text))
                answer = replace(answer, usage=usage)
        attempt.end(answer.finish_reason)
        return replace(answer, final=attempt.text)


class _Habits(AsyncCallbackHandler):
    """Learns from a model's whole replies whether they begin within a thought."""

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
