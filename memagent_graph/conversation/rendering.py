"""A conversation as lines that a reader can read."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    ToolMessage,
    convert_to_messages,
)

from memagent_graph.conversation.messages import TOLD_AT, is_instruction
from memagent_graph.conversation.redaction import unchanged
from memagent_graph.memory.pages import Said

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from langchain_core.messages import MessageLikeRepresentation

    from memagent_graph.conversation.redaction import Redact

    About = str | BaseMessage | Sequence[MessageLikeRepresentation]

USER, ASSISTANT, TOOL = "user", "assistant", "tool "

LINE = re.compile(r"(?m)^\[(?P<day>\d{4}-\d\d-\d\d)[^\]\n]*\] (?P<speaker>[^:\n]+): ")
"""Beginning of each message in `rendered`; its further lines are indented."""


def rendered(messages: Iterable[BaseMessage], redact: Redact = unchanged) -> str:
    """The conversation as text: `[2026-11-21T08:30+00:00] user: I moved to Berlin.` and so on."""
    return "".join(text for _, _, text in render(messages, redact))


def render(
    messages: Iterable[BaseMessage], redact: Redact = unchanged
) -> Iterator[tuple[BaseMessage, str, str]]:
    """Each message, when it was said, and its text, as in `rendered`.

    Tools that were called and what they returned have lines of their own. Pictures, sound and
    files are named by their type. What a model thought aloud is left out, and so are messages of
    the application.

    Args:
        messages: the conversation.
        redact: function that each text, tool argument and speaker's name passes through.
    """
    for message, told, speaker, said in _spoken(messages, redact):
        # Indented, a line of somebody's text cannot pass for the beginning of another message.
        yield message, told, f"[{told}] {speaker}: " + "\n  ".join(said.splitlines()) + "\n"


def word_for_word(
    messages: Iterable[BaseMessage], thread: str, redact: Redact = unchanged
) -> list[Said]:
    """Return the texts of people and the assistant, without calls and results of tools.

    Args:
        messages: the conversation, with ids.
        thread: its id.
        redact: function that each text and speaker's name passes through.
    """
    return [
        Said(str(message.id), thread, told, speaker, said)
        for message, told, speaker, said in _spoken(messages, redact)
        if not speaker.startswith(TOOL)
    ]


def said_now(about: About) -> tuple[str, list[BaseMessage]]:
    """Return the text of the last human message, and the messages of the conversation.

    Args:
        about: a text, a message, or a conversation.
    """
    if isinstance(about, str):
        return about, []
    messages = convert_to_messages([about] if isinstance(about, BaseMessage) else about)
    humans = [m for m in messages if _role(m) == USER and not is_instruction(m)]
    return (_described(humans[-1]) if humans else ""), messages


def _spoken(
    messages: Iterable[BaseMessage], redact: Redact
) -> Iterator[tuple[BaseMessage, str, str, str]]:
    """Each message with when it was said, by whom, and what."""
    told = datetime.now(UTC).isoformat(timespec="minutes")
    for message in messages:
        told = _told_at(message) or told
        for speaker, said in () if is_instruction(message) else _said(message, redact):
            yield message, told, speaker, said


def _told_at(message: BaseMessage) -> str | None:
    told = message.additional_kwargs.get(TOLD_AT)
    if isinstance(told, datetime):
        told = told.isoformat(timespec="minutes")
    return told if isinstance(told, str) and re.match(r"\d{4}-\d\d-\d\d[^\]\n]*$", told) else None


def _said(message: BaseMessage, redact: Redact) -> Iterable[tuple[str, str]]:
    text = _described(message)
    text = redact(text) if text else ""
    role = _role(message)
    if role == TOOL:
        failed = " failed" if getattr(message, "status", "") == "error" else ""
        yield f"{TOOL}{_name(message.name or 'result')}{failed}", text
        return
    speaker = _name(redact(message.name) if message.name else role)
    if text:
        yield speaker, text
    if isinstance(message, AIMessage):
        for call in [*message.tool_calls, *message.invalid_tool_calls]:
            arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
            called = f"{TOOL}{_name(call['name'] or 'unnamed')} called by {speaker}"
            yield called, redact(arguments)


def _role(message: BaseMessage) -> str:
    """Return the speaker of a message without a name: only a person's message is the user's."""
    if isinstance(message, ToolMessage | FunctionMessage):
        return TOOL
    if isinstance(message, ChatMessage):
        return _ROLES.get(message.role, message.role)
    return ASSISTANT if isinstance(message, AIMessage) else USER


_ROLES = {"human": USER, "ai": ASSISTANT, "tool": TOOL, "function": TOOL}
"""Other names of roles in a `ChatMessage`."""


def _name(name: str) -> str:
    return re.sub(r"[\s:\]\[]+", " ", name).strip() or "unnamed"


def _described(message: BaseMessage) -> str:
    """Text as it is, everything else by its type."""
    if isinstance(message.content, str):
        return message.content.strip()
    parts = (_part(block) for block in message.content)
    return "\n".join(filter(None, parts)).strip()


def _part(block: str | Mapping[str, object]) -> str:
    if isinstance(block, str):
        return block
    kind = str(block.get("type", "content"))
    if "text" in block and isinstance(block["text"], str):
        return block["text"]
    if kind in _UNSPOKEN:
        return ""
    kind = kind.removeprefix("input_").removesuffix("_url")
    detail = next((str(block[key]) for key in _DETAILS if block.get(key)), "")
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


_UNSPOKEN = {"reasoning", "thinking", "redacted_thinking", "tool_use", "tool_call", "function_call"}
"""Tool calls among the content stand in `tool_calls` as well."""
_DETAILS = ("filename", "name", "title", "mime_type", "media_type", "format")
