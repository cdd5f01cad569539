"""A LangChain chat model as LlamaIndex takes one: for `benchmarks/local_models.py`."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata


class Passed(CustomLLM):
    """Passes prompts on.

    Attributes:
        asks: the model.
        window: its context length, in tokens.
        reply: longest reply, in tokens.
    """

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
