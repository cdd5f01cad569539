"""Find the user and the thread of a graph's run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from memagent_graph.errors import ConfigurationError

UserOf = Callable[[Runtime[Any], RunnableConfig], str | None]
"""A function from a run's runtime and config to the id of who talks."""

USER_KEY = "user_id"

_HOW = (
    'Invoke with context={"user_id": "..."} (a context_schema with that field) or with '
    '{"configurable": {"user_id": "...", "thread_id": "..."}}, or give user= a function.'
)
_log = logging.getLogger(__name__)


class Speaker(NamedTuple):
    """Whose memory it is, and which conversation with them."""

    user: str
    thread: str


class Speakers:
    """Finds the user by a function, the run's context or its config, in this order.

    A run without a user continues with the user of its thread, which may have been resumed;
    otherwise the thread has a memory of its own.

    Args:
        user: function that returns the user's id; None looks for `user_id` in the context, then in
            `configurable`.
        strict: whether a run without a user is an error instead.
    """

    def __init__(self, user: UserOf | None = None, *, strict: bool = False) -> None:
        self._user = user
        self._strict = strict
        self._warned = False

    def of(self, runtime: Runtime[Any], config: RunnableConfig, known: str | None) -> Speaker:
        """Return the user and the thread of a run.

        Args:
            runtime: runtime of the run.
            config: configuration of the run.
            known: id of the user in the thread's state.

        Raises:
            ConfigurationError: The run names neither a user nor a thread, or no user and `strict`.
        """
        configurable = config.get("configurable", {})
        thread = str(configurable.get("thread_id") or "")
        named = self._named(runtime, config) or known
        if named:
            return Speaker(named, thread)
        if self._strict or not thread:
            message = f"The run does not say which user is talking. {_HOW}"
            raise ConfigurationError(message)
        if not self._warned:
            self._warned = True
            _log.warning("A run names no user, so its thread has a memory of its own. %s", _HOW)
        return Speaker(f"thread {thread}", thread)

    def _named(self, runtime: Runtime[Any], config: RunnableConfig) -> str:
        if self._user is not None:
            return str(self._user(runtime, config) or "")
        context = runtime.context
        found = (
            context.get(USER_KEY)
            if isinstance(context, Mapping)
            else getattr(context, USER_KEY, None)
        )
        return str(found or config.get("configurable", {}).get(USER_KEY) or "")
