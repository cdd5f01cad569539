"""Pages about the calls of a model that a `TraceRecorder` wrote to files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.rl.traces import load
from memagent_inspector.door import fields_of
from memagent_inspector.pages import needed, state_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.rl.traces import RecordedCall

_MOST_SHOWN = 200
"""Readings, and calls of one reading, that are shown; of more, the last."""


class _Recorded(NamedTuple):
    """The recorded calls of one reading."""

    name: str
    calls: Sequence[RecordedCall]

    @property
    def failed(self) -> int:
        return sum(call.error is not None for call in self.calls)

    @property
    def seconds(self) -> float:
        return sum(call.seconds for call in self.calls)


async def show_list(request: Request) -> Response:
    """Recorded readings, the last first."""
    found = [*(await _load(request)).values()][::-1]
    return page("calls.html", {"readings": found[:_MOST_SHOWN], "left": len(found) - _MOST_SHOWN})


async def show_reading(request: Request) -> Response:
    """The calls of one reading: prompt, and reply or error."""
    name = needed(fields_of(request), "of")
    found = (await _load(request)).get(name, _Recorded(name, ()))
    calls = [*enumerate(found.calls, start=1)][-_MOST_SHOWN:]
    return page("calls_of.html", {"reading": found, "calls": calls, "text_of": _text_of})


async def _load(request: Request) -> dict[str, _Recorded]:
    """Read the files anew: a reading may be under way."""
    files = state_of(request).calls
    calls = (await asyncio.to_thread(load, files)).calls if files else []
    found: dict[str, list[RecordedCall]] = {}
    for call in calls:
        found.setdefault(call.rollout, []).append(call)
    return {name: _Recorded(name, own) for name, own in found.items()}


def _text_of(message: Mapping[str, Any]) -> str:
    """The words of a message of a prompt."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
