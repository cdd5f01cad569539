"""The events of a streamed response, made from the parts of a chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_openai_server.http.delivery import event
from memagent_openai_server.responses.items import (
    call_item,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
    thought_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_openai_server.responses.made import Making

Item = dict[str, Any]


class EventStream:
    """The part of a response that has been sent.

    Args:
        making: the response.

    Attributes:
        output: the complete items.
        usage: usage of the completion; None until known.
        memagent: the reading; None until known.
        finish_reason: finish reason of the completion; None until known.
    """

    def __init__(self, making: Making) -> None:
        self.output: list[Item] = []
        self.usage: dict[str, Any] | None = None
        self.memagent: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._making = making
        self._number = -1
        self._open: _Open | None = None
        self._calls: dict[int, dict[str, str]] = {}

    def begin(self) -> Iterator[bytes]:
        """Yield the first events."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._making.response("in_progress", []))

    def part(self, part: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events for a part of the completion."""
        self.usage = part.get("usage") or self.usage
        self.memagent = part.get("memagent") or self.memagent
        for choice in (part.get("choices") or ())[:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            if thought := thought_in(delta):
                yield from self._add("reasoning", "summary_text", thought)
            if delta.get("content"):
                logprobs = (choice.get("logprobs") or {}).get("content") or []
                yield from self._add("message", "output_text", delta["content"], logprobs)
            if delta.get("refusal"):
                yield from self._add("message", "refusal", delta["refusal"])
            for call in delta.get("tool_calls") or ():
                self._add_call(call)

    def finish_items(self, status: str) -> Iterator[bytes]:
        """Yield the events after the last part, for the text and for all function calls.

        Args:
            status: status of the message.
        """
        yield from self._close(status)
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
        """Return the last event: the response is completed, incomplete or failed."""
        return self._event(response["status"], response=response)

    def _add_call(self, delta: dict[str, Any]) -> None:
        empty = {"id": "", "name": "", "arguments": ""}
        call = self._calls.setdefault(delta.get("index") or 0, empty)
        function = delta.get("function") or {}
        call["id"] = call["id"] or delta.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _add(
        self, item: str, part: str, text: str, logprobs: list[dict[str, Any]] | None = None
    ) -> Iterator[bytes]:
        if self._open is None or self._open.kind != part:
            if self._open is None or self._open.item["type"] != item:
                yield from self._close()
                begun = message_item("in_progress") if item == "message" else reasoning_item()
                yield self._event("output_item.added", item=begun, output_index=len(self.output))
            else:
                begun = self._open.item
                yield from self._close_part(self._open)
            self._open = _Open(begun, part, len(self.output))
            name = "content_part" if item == "message" else "reasoning_summary_part"
            yield self._event(f"{name}.added", part=self._open.part, **self._open.place)
        opened = self._open
        opened.text += text
        opened.logprobs += logprobs or []
        more = {"logprobs": logprobs or []} if part == "output_text" else {}
        yield self._event(f"{opened.name}.delta", delta=text, **more, **opened.place)

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        if self._open is None:
            return
        opened, self._open = self._open, None
        yield from self._close_part(opened)
        item = opened.item if opened.kind == "summary_text" else {**opened.item, "status": status}
        yield self._event("output_item.done", item=item, output_index=len(self.output))
        self.output.append(item)

    def _close_part(self, opened: _Open) -> Iterator[bytes]:
        part, kind = opened.part, opened.kind
        text = {"refusal": part["refusal"]} if kind == "refusal" else {"text": part["text"]}
        more = {"logprobs": opened.logprobs} if kind == "output_text" else {}
        yield self._event(f"{opened.name}.done", **text, **more, **opened.place)
        name = "reasoning_summary_part" if kind == "summary_text" else "content_part"
        yield self._event(f"{name}.done", part=part, **opened.place)
        opened.item = {**opened.item, opened.list: [*opened.item[opened.list], part]}

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._number, **fields}, name)


class _Open:
    """A part of an item that is being sent.

    Args:
        item: the item, with the parts before this one.
        kind: type of the part.
        number: index of the item in the output.
    """

    def __init__(self, item: Item, kind: str, number: int) -> None:
        self.item = item
        self.kind = kind
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.list = "summary" if kind == "summary_text" else "content"
        self.name = f"reasoning_{kind}" if kind == "summary_text" else kind
        index = len(item[self.list])
        own = {"item_id": item["id"], "output_index": number}
        self.place = {**own, f"{self.list}_index": index}

    @property
    def part(self) -> Item:
        """The part, with the text so far."""
        if self.kind == "refusal":
            return refusal_part(self.text)
        if self.kind == "summary_text":
            return {"type": "summary_text", "text": self.text}
        return text_part(self.text, self.logprobs)
