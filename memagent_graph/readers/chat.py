"""A reader that asks a chat model, with two prompts."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.errors import GraphBubbleUp

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.models.failures import model_error
from memagent_graph.prompts import Prompts, boxed
from memagent_graph.readers.base import Answer, Evidence, Reader, Update, Usage
from memagent_graph.text.chunking import last_sentence_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer


class ChatReader(Reader):
    """Asks a chat model for each new memory and for the answer.

    Reasoning that the model thinks aloud is left out of both.

    Args:
        model: any LangChain chat model.
        prompts: what it is told.
        config: the budgets for memory and answer become its `max_tokens`, where its owner has
            set none.
        name: what to call it in output; the model's own name by default.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        prompts: Prompts | None = None,
        config: ReadingConfig | None = None,
        name: str | None = None,
    ) -> None:
        config = config or ReadingConfig()
        self.model = model
        self.prompts = prompts or Prompts()
        self.name = name or _model_name(model)
        self.tokenizer: Tokenizer | None = getattr(model, "tokenizer", None)
        self.window_tokens: int | None = getattr(model, "window_tokens", None)
        identity = [type(model).__name__, _identity(model), self.prompts.fingerprint]
        budgets = [config.memory_tokens, config.answer_tokens]
        record = json.dumps([*identity, *budgets], sort_keys=True, default=_kind)
        self.fingerprint = sha256(record.encode()).hexdigest()[:32]
        self._update_options = _limit(model, config.memory_tokens)
        self._answer_options = _limit(model, config.answer_tokens)

    @property
    def deterministic(self) -> bool:
        """Whether the same prompt brings the same reply: not where sampling is on or unknown."""
        off = getattr(self.model, "temperature", None) == 0
        return bool(getattr(self.model, "deterministic", off))

    async def prepare(self) -> None:
        """Let a model that can ask its server find out how much it holds.

        Raises:
            ModelError: The server has no such model.
        """
        discover = getattr(self.model, "adiscover", None)
        if discover is not None:
            self.window_tokens = await discover()

    async def update(
        self,
        question: str,
        memory: str,
        chunk: Chunk,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Update:
        """Ask for the memory after `chunk`; one cut off by its budget ends at a sentence."""
        prompt = self.prompts.for_update(question, memory, chunk.text)
        reply, text = await self._ask(prompt, config, self._update_options)
        reason = _finish_reason(reply)
        if reason in _CUT_OFF:
            text = text[: last_sentence_end(text)].rstrip() or text
        return Update(text, usage=_usage(reply), finish_reason=reason)

    async def respond(
        self,
        question: str,
        memory: str,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Ask for the answer."""
        prompt = self.prompts.for_answer(question, memory)
        reply, text = await self._ask(prompt, config, self._answer_options)
        return Answer(text, boxed(text), usage=_usage(reply), finish_reason=_finish_reason(reply))

    async def _ask(
        self, prompt: str, config: RunnableConfig | None, options: dict[str, Any]
    ) -> tuple[AIMessage, str]:
        try:
            reply = await self.model.ainvoke([HumanMessage(prompt)], config, **options)
        except GraphBubbleUp:  # an interrupt within the model is no failure
            raise
        except Exception as error:
            raise model_error(error) from error
        _check_refusal(reply)
        text = _without_reasoning(reply.text).strip()
        if not text:
            cut = _finish_reason(reply) in _CUT_OFF
            raise EmptyReplyError(
                "The model's reply was cut off while it was still thinking: give it room with "
                "max_tokens on the model, raise memory_tokens and answer_tokens, or turn its "
                "thinking off."
                if cut
                else "The model returned no text."
            )
        return reply, text


_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
_REFUSED = ("content_filter", "refusal", "SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII")
_CLOSED_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_HEADLESS_THINKING = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL)
_OPEN_THINKING = re.compile(r"<(?:think|thinking|reasoning)>.*\Z", re.DOTALL)


def _without_reasoning(text: str) -> str:
    """The reply without what the model thought aloud, closed, cut off or begun by its template."""
    text = _CLOSED_THINKING.sub("", text)
    text = _HEADLESS_THINKING.sub("", text)
    return _OPEN_THINKING.sub("", text)


def _check_refusal(reply: AIMessage) -> None:
    refusal = reply.additional_kwargs.get("refusal")
    blocks = reply.content if isinstance(reply.content, list) else []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "refusal":
            refusal = block.get("refusal") or "no reason given"
    if refusal:
        message = f"The model declined: {refusal}"
        raise RefusalError(message)
    if _finish_reason(reply) in _REFUSED:
        raise RefusalError("The provider's content filter stopped the reply.")


def _finish_reason(reply: AIMessage) -> str | None:
    metadata = reply.response_metadata
    names = ("finish_reason", "stop_reason", "done_reason", "stopReason")  # as providers call it
    return next((metadata[name] for name in names if metadata.get(name)), None)


def _usage(reply: AIMessage) -> Usage:
    found = reply.usage_metadata
    if found is None:
        return Usage(calls=1)
    return Usage(1, found["input_tokens"], found["output_tokens"])


def _model_name(model: BaseChatModel) -> str:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return str(name) if name else type(model).__name__


def _identity(model: BaseChatModel) -> dict[str, Any]:
    """What tells two models apart: LangChain's own parameters, the endpoint and the revision."""
    identity = dict(model._identifying_params)  # noqa: SLF001 - LangChain has no public name for it
    for key in ("base_url", "openai_api_base", "revision", "seed", "temperature", "top_p"):
        if (value := getattr(model, key, None)) is not None:
            identity[key] = value
    return {key: value for key, value in identity.items() if "key" not in key.lower()}


def _kind(value: Any) -> str:
    """Stands for a value that JSON does not know: not its `str`, which may hold an address."""
    return type(value).__qualname__


def _limit(model: BaseChatModel, tokens: int) -> dict[str, Any]:
    """The option that limits a reply, where the model has one and its owner set no limit."""
    own = "max_tokens" in model.model_fields_set and getattr(model, "max_tokens", None) is not None
    limited = "max_tokens" in type(model).model_fields and not own
    return {"max_tokens": tokens} if limited else {}
