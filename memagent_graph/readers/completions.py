"""What a chat model's message says: its text without reasoning, how it ended, what it cost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from langgraph.errors import GraphBubbleUp

from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.models.failures import model_error
from memagent_graph.readers.base import Usage
from memagent_graph.text.chunking import last_sentence_end

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from langchain_core.messages import AIMessage

_CUT_OFF = ("length", "max_tokens", "MAX_TOKENS")
_REFUSED = ("content_filter", "refusal", "SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII")
_THINKING = ("think", "thinking", "reasoning")
_HEADLESS_THINKING = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL)
_OPEN_THINKING = re.compile(r"<(?:think|thinking|reasoning)>.*\Z", re.DOTALL)


async def take_reply(replying: Awaitable[AIMessage]) -> tuple[AIMessage, str]:
    """Await a reply, and return it with its text without reasoning.

    Raises:
        EmptyReplyError: The reply has no text beside reasoning.
        RefusalError: The model or the provider's filter declined.
        ModelError: The call failed.
    """
    try:
        reply = await replying
    except GraphBubbleUp:  # an interrupt within the model is not a failure
        raise
    except Exception as error:
        raise model_error(error) from error
    _check_refusal(reply)
    text = without_reasoning(reply.text).strip()
    if not text:
        cut = is_cut_off(reply)
        raise EmptyReplyError(
            "The model's reply was cut off while it was still thinking: give it room with "
            "max_tokens on the model, raise memory_tokens and answer_tokens, or turn its "
            "thinking off."
            if cut
            else "The model returned no text. Check its chat template and its limits."
        )
    return reply, text


def is_cut_off(reply: AIMessage) -> bool:
    """Whether a reply ended at its token limit."""
    return finish_reason(reply) in _CUT_OFF


def whole_sentences(reply: AIMessage, text: str) -> str:
    """Return a reply's text; without its last sentence if that was cut off."""
    if not is_cut_off(reply):
        return text
    return text[: last_sentence_end(text)].rstrip() or text


def without_reasoning(text: str) -> str:
    """The reply without reasoning: closed, cut off, or opened by the chat template."""
    for name in _THINKING:
        text = _without_closed(text, f"<{name}>", f"</{name}>")
    text = _HEADLESS_THINKING.sub("", text)
    return _OPEN_THINKING.sub("", text)


def _without_closed(text: str, opening: str, closing: str) -> str:
    """A text without its marked spans. A regex would be quadratic where marks stay open."""
    kept, at = [], 0
    while (begin := text.find(opening, at)) >= 0 and (end := text.find(closing, begin)) >= 0:
        kept.append(text[at:begin])
        at = end + len(closing)
    return "".join([*kept, text[at:]])


def _check_refusal(reply: AIMessage) -> None:
    refusal = reply.additional_kwargs.get("refusal")
    blocks = reply.content if isinstance(reply.content, list) else []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "refusal":
            refusal = block.get("refusal") or "no reason given"
    if refusal:
        message = f"The model declined: {refusal}"
        raise RefusalError(message)
    if finish_reason(reply) in _REFUSED:
        raise RefusalError("The provider's content filter stopped the reply.")


def finish_reason(reply: AIMessage) -> str | None:
    """Return why a reply ended, in the provider's words; None if it does not say."""
    metadata = reply.response_metadata
    names = ("finish_reason", "stop_reason", "done_reason", "stopReason")  # as providers call it
    return next((metadata[name] for name in names if metadata.get(name)), None)


def usage_of(reply: AIMessage) -> Usage:
    """The cost of one call, with the token counts that the model reports, if any."""
    found = reply.usage_metadata
    if found is None:
        return Usage(calls=1)
    return Usage(1, found["input_tokens"], found["output_tokens"])
