"""The events in which the responses API streams, made of the parts of a chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from memagent_openai_server.delivery import event
from memagent_openai_server.items import call_item, message_item, text_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEYS = ("reasoning_content", "reasoning")
"""Under which servers stream what a model thinks aloud."""


class Told:
    """What of a response was told so far.

    Args:
        response: makes the response, of a status and an output.

    Attributes:
        output: the items that are whole.
        usage: of the completion, once it is known.
        memagent: what was read, likewise.
    """

    def __init__(self, response: Callable[..., dict[str, Any]]) -> None:
        self.output: list[dict[str, Any]] = []
        self.usage: dict[str, Any] | None = None
        self.memagent: dict[str, Any] | None = None
        self._response = response
        self._number = -1
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._calls: dict[int, dict[str, str]] = {}

    @property
    def said(self) -> dict[str, Any]:
        """The answer as a message of a chat."""
        texts = [item["content"][0]["text"] for item in self.output if item["type"] == "message"]
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in self._calls.values()
        ]
        found: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
        return {**found, "tool_calls": calls} if calls else found

    def begin(self) -> Iterator[bytes]:
        """The events before all others."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress", []))

    def part(self, part: dict[str, Any]) -> Iterator[bytes]:
        """The events for a part of the completion."""
        self.usage = part.get("usage") or self.usage
        self.memagent = part.get("memagent") or self.memagent
        for choice in (part.get("choices") or ())[:1]:
            delta = choice.get("delta") or {}
            thought = next((delta[key] for key in _KEYS if delta.get(key)), None)
            if thought:
                yield from self._opened("reasoning")
                yield from self._added(thought)
            if delta.get("content"):
                yield from self._opened("message")
                yield from self._added(delta["content"])
            for call in delta.get("tool_calls") or ():
                self._add_call(call)

    def finish_items(self) -> Iterator[bytes]:
        """The events after the last part: of the text, and of all calls of functions."""
        yield from self._closed()
        for call in self._calls.values():
            item = call_item(call["id"], call["name"], call["arguments"])
            at = {"output_index": len(self.output)}
            about = {**at, "item_id": item["id"]}
            begun = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("output_item.added", item=begun, **at)
            arguments = item["arguments"]
            yield self._event("function_call_arguments.delta", delta=arguments, **about)
            yield self._event(
                "function_call_arguments.done", arguments=arguments, name=item["name"], **about
            )
            yield self._event("output_item.done", item=item, **at)
            self.output.append(item)

    def end(self, response: dict[str, Any]) -> bytes:
        """The last event."""
        return self._event("completed", response=response)

    def _add_call(self, delta: dict[str, Any]) -> None:
        empty = {"id": "", "name": "", "arguments": ""}
        call = self._calls.setdefault(delta.get("index") or 0, empty)
        function = delta.get("function") or {}
        call["id"] = call["id"] or delta.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _opened(self, kind: str) -> Iterator[bytes]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self._closed()
        if kind == "message":
            self._open = message_item("", status="in_progress")
        else:
            self._open = {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}
        yield self._event("output_item.added", item=self._open, output_index=len(self.output))
        if kind == "message":
            yield self._event("content_part.added", part=text_part(""), **self._place("content"))
        else:
            part = {"type": "summary_text", "text": ""}
            yield self._event("reasoning_summary_part.added", part=part, **self._place("summary"))

    def _added(self, text: str) -> Iterator[bytes]:
        self._text += text
        if self._is_message:
            place = self._place("content")
            yield self._event("output_text.delta", delta=text, logprobs=[], **place)
        else:
            place = self._place("summary")
            yield self._event("reasoning_summary_text.delta", delta=text, **place)

    def _closed(self) -> Iterator[bytes]:
        if self._open is None:
            return
        item, text = self._open, self._text
        if self._is_message:
            place, part = self._place("content"), text_part(text)
            yield self._event("output_text.done", text=text, logprobs=[], **place)
            yield self._event("content_part.done", part=part, **place)
            item = {**item, "status": "completed", "content": [part]}
        else:
            place, part = self._place("summary"), {"type": "summary_text", "text": text}
            yield self._event("reasoning_summary_text.done", text=text, **place)
            yield self._event("reasoning_summary_part.done", part=part, **place)
            item = {**item, "summary": [part]}
        yield self._event("output_item.done", item=item, output_index=len(self.output))
        self.output.append(item)
        self._open, self._text = None, ""

    @property
    def _is_message(self) -> bool:
        return self._open is not None and self._open["type"] == "message"

    def _place(self, what: str) -> dict[str, Any]:
        assert self._open is not None  # noqa: S101 - its callers opened one
        return {"item_id": self._open["id"], "output_index": len(self.output), f"{what}_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._number, **fields}, name)
