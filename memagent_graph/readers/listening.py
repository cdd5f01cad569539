"""Stream an answer while it is written: only words that are certain to be part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
    from langchain_core.runnables import RunnableConfig

_BOX = "\\boxed{"
_THINKING = ("<think>", "<thinking>", "<reasoning>")


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
    for opening in _THINKING:
        if len(text) < len(opening) and opening.startswith(text):
            return ""  # it may become reasoning
        if text.startswith(opening):
            closing = opening.replace("<", "</")
            _, closed, text = text.partition(closing)
            return certain_part(text, boxed=False) if closed else ""
    for opening in _THINKING:
        text = text.partition(opening)[0]
    open_tag = text.rfind("<")
    if open_tag >= 0 and any(opening.startswith(text[open_tag:]) for opening in _THINKING):
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
