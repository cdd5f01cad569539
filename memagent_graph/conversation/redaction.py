"""A function of the application that takes out of texts what must not be kept."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction

from memagent_graph.errors import ConfigurationError

Redact = Callable[[str], str]
"""Function from the text of a message, or its speaker's name, to the text that may be kept."""

_WRONG = (
    "redact must be a function of a text that returns a text, at once: a coroutine function or "
    "another result cannot be used."
)


def unchanged(text: str) -> str:
    """The redaction of those who need none."""
    return text


def checked(redact: Redact | None) -> Redact:
    """A redaction that raises rather than let something through.

    Raises:
        ConfigurationError: It is a coroutine function; or, when it is called, it returns no text.
    """
    if redact is None:
        return unchanged
    if iscoroutinefunction(redact):
        raise ConfigurationError(_WRONG)

    def redacted(text: str) -> str:
        found: object = redact(text)
        if not isinstance(found, str):
            raise ConfigurationError(_WRONG)
        return found

    return redacted
