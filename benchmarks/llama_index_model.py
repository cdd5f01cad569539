"""LlamaIndex's own refine, with a LangChain chat model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage
from llama_index.core import Settings
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.response_synthesizers import get_response_synthesizer

if TYPE_CHECKING:
    from collections.abc import Callable


class Passed(CustomLLM):
    """Passes prompts on to a model, with its context length and its longest reply in tokens."""

    asks: Any
    window: int
    reply: int

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.window, num_output=self.reply)

    async def acomplete(self, prompt: str, **_: object) -> CompletionResponse:
        reply = await self.asks.ainvoke([HumanMessage(prompt)], max_tokens=self.reply)
        return CompletionResponse(text=reply.text)

    def complete(self, prompt: str, **_: object) -> CompletionResponse:
        raise NotImplementedError("it is asked by async methods alone")

    def stream_complete(self, prompt: str, **_: object) -> Any:
        raise NotImplementedError("it is asked by async methods alone")


async def refine(
    model: Any,
    question: str,
    parts: list[str],
    count: Callable[[str], int],
    *,
    window: int,
    reply: int,
) -> str:
    """Answer from the parts of a text, within a window and with replies of so many tokens."""
    Settings.tokenizer = lambda text: range(count(text))
    passed = Passed(asks=model, window=window, reply=reply)
    synthesizer: Any = get_response_synthesizer(llm=passed, response_mode="refine", use_async=True)
    return str(await synthesizer.aget_response(question, parts))
