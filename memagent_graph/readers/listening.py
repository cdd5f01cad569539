"""Who hears an answer while it is written: the words that will be the answer, and no others."""

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
    """Stands among the callbacks of a reader's answer, to be told its pieces.

    Args:
        hear: called with each piece of the answer, and whether it is the last. Together they are
            the answer.
    """

    def __init__(self, hear: Callable[[str, bool], None]) -> None:
        self.hear = hear


def listener_of(config: RunnableConfig | None) -> Listener | None:
    """The listener in a config, if there is one."""
    handlers = getattr((config or {}).get("callbacks"), "handlers", ())
    return next((handler for handler in handlers if isinstance(handler, Listener)), None)


class Telling(BaseCallbackHandler):
    r"""Tells a listener what of a model's reply is the answer, as its tokens come.

    Args:
        listener: to be told.
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
        """Pass on what is certain by now."""
        self._reply += chunk.text if chunk is not None else str(token)
        certain = certain_part(self._reply, boxed=self._boxed)
        if certain.startswith(self._told):
            self._tell(certain[len(self._told) :])

    def finish(self, final: str) -> None:
        """Tell the rest.

        Args:
            final: the answer.
        """
        rest = final.removeprefix(self._told) if final.startswith(self._told) else final
        self._listener.hear(rest, True)  # noqa: FBT003 - the listener's signature

    def _tell(self, piece: str) -> None:
        if piece:
            self._told += piece
            self._listener.hear(piece, False)  # noqa: FBT003 - likewise


def certain_part(reply: str, *, boxed: bool) -> str:
    r"""What of an unfinished reply will be the answer, whatever follows; no white space at its end.

    Args:
        reply: so far.
        boxed: whether the answer is what `\boxed{}` holds; else it is the reply without thoughts.
    """
    if boxed:
        return _in_first_box(certain_part(reply, boxed=False)).strip()
    text = reply.lstrip()
    for opening in _THINKING:
        if len(text) < len(opening) and opening.startswith(text):
            return ""  # it may become a thought
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
