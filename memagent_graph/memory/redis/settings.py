"""Settings of a server that determine whether it keeps what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.memory.redis.pipeline import Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.memory.redis.pipeline import Reply

_NAMES = ("maxmemory", "maxmemory-policy", "save", "appendonly")
_IN_INFO = {"maxmemory": "maxmemory", "maxmemory_policy": "maxmemory-policy"}


def ask(key: bytes) -> list[Wire]:
    """Return the commands that ask the server of `key` for its settings."""
    questions = [Wire(key, ("CONFIG", "GET", name)) for name in _NAMES]
    return [*questions, Wire(key, ("INFO",))]


def read(replies: Sequence[Reply]) -> dict[str, str]:
    """Return the settings in the replies to `ask`; only those of INFO if CONFIG is forbidden."""
    *configs, info = replies
    settings: dict[str, str] = {}
    if isinstance(info, dict):  # redis-py has parsed it
        settings |= {name: str(info[known]) for known, name in _IN_INFO.items() if known in info}
        if "aof_enabled" in info:
            settings["appendonly"] = "yes" if info["aof_enabled"] else "no"
    for reply in configs:
        if isinstance(reply, Exception):
            continue
        # A list or a dictionary, depending on the protocol version.
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        settings |= {_text(name): _text(value) for name, value in pairs}
    return settings


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
