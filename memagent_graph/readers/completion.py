"""Take a chat model's message: its text, how it ended, what it cost, and its stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphBubbleUp

from memagent_graph.errors import EmptyReplyError, RefusalError
from memagent_graph.models.failures import model_error
from memagent_graph.readers.base import Usage
from memagent_graph.text.chunks import last_sentence_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
    from langchain_core.runnables import RunnableConfig

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


_BOX = "\\boxed{"
_LISTENING_THINKING = ("<think>", "<thinking>", "<reasoning>")


class Listener(BaseCallbackHandler):
    """A callback handler that receives an answer in pieces.

    Args:
        hear: called with each piece of the answer, and whether it is the last. The pieces joined
            are the answer.
    """

    def __init__(self, hear: Callable[[str, bool], None]) -> None:
        self.hear = hear


def listener_of(config: RunnableConfig | None) -> Listener | None:
    """Return the listener among a config's callbacks; None if there is none."""
    handlers = getattr((config or {}).get("callbacks"), "handlers", ())
    return next((handler for handler in handlers if isinstance(handler, Listener)), None)


class Telling(BaseCallbackHandler):
    r"""Passes the answer in a model's reply on to a listener, token by token.

    Args:
        listener: the listener.
        boxed: whether the model was asked to put the answer into `\boxed{}`.
    """

    run_inline = True  # in the order of the tokens

    def __init__(self, listener: Listener, *, boxed: bool) -> None:
        self._listener = listener
        self._boxed = boxed
        self._reply = self._told = ""

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Pass on the part of the answer that is certain by now."""
        self._reply += chunk.text if chunk is not None else str(token)
        certain = certain_part(self._reply, boxed=self._boxed)
        if certain.startswith(self._told):
            self._tell(certain[len(self._told) :])

    def finish(self, final: str) -> None:
        """Pass on the rest of the answer.

        Args:
            final: the whole answer.
        """
        rest = final.removeprefix(self._told) if final.startswith(self._told) else final
        self._listener.hear(rest, True)  # noqa: FBT003 - the listener's signature

    def _tell(self, piece: str) -> None:
        if piece:
            self._told += piece
            self._listener.hear(piece, False)  # noqa: FBT003 - likewise


def certain_part(reply: str, *, boxed: bool) -> str:
    r"""Return the part of an unfinished reply that is certain to be in the answer.

    White space at its end is left out.

    Args:
        reply: the reply so far.
        boxed: whether the answer is the content of `\boxed{}`. Otherwise it is the reply without
            reasoning.
    """
    if boxed:
        return _in_first_box(certain_part(reply, boxed=False)).strip()
    text = reply.lstrip()
    for opening in _LISTENING_THINKING:
        if len(text) < len(opening) and opening.startswith(text):
            return ""  # it may become reasoning
        if text.startswith(opening):
            closing = opening.replace("<", "</")
            _, closed, text = text.partition(closing)
            return certain_part(text, boxed=False) if closed else ""
    for opening in _LISTENING_THINKING:
        text = text.partition(opening)[0]
    open_tag = text.rfind("<")
    if open_tag >= 0 and any(
        opening.startswith(text[open_tag:]) for opening in _LISTENING_THINKING
    ):
        text = text[:open_tag]
    return text.rstrip()


def _in_first_box(reply: str) -> str:
    start = reply.find(_BOX)
    if start < 0:
        return ""
    start += len(_BOX)
    depth = 1
    for offset, character in enumerate(reply[start:]):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return reply[start : start + offset]
    return reply[start:]
