"""Calls of models that are not made by the graph, repeated after transient errors as it does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.models.failures import model_error
from memagent_graph.reading import Reading
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Answer, Reader

T = TypeVar("T")

_LONGEST_PAUSE = 60.0
"""Seconds between two attempts, beside what a server asks for."""


async def respond(reader: Reader, config: ReadingConfig, question: str, text: str) -> Answer:
    """The reader's answer to `question` from `text`.

    Raises:
        ModelError: It failed for good, or `max_attempts` times.
    """
    return await repeated(lambda: reader.respond(question, text), reader, config)


async def foreign(call: Callable[[], Awaitable[T]], reader: Reader, config: ReadingConfig) -> T:
    """As `repeated`, of a call whose errors are its provider's own."""

    async def translated() -> T:
        try:
            return await call()
        except Exception as error:
            raise model_error(error) from error

    return await repeated(translated, reader, config)


async def repeated(call: Callable[[], Awaitable[T]], reader: Reader, config: ReadingConfig) -> T:
    """What `call` returns; a server's Retry-After is obeyed, and intervals double.

    Args:
        call: made anew for each attempt.
        reader: on whose behalf.
        config: how often, and how long to wait.

    Raises:
        ModelError: It failed for good, or `max_attempts` times.
    """
    reading = Reading("evaluation", reader, config, load_tokenizer(reader.tokenizer))
    attempt = 0
    while True:
        attempt += 1
        try:
            return await call()
        except ModelError as error:
            failure = await reading.judged(error, attempt, None)
            if not isinstance(failure, TransientModelError):
                raise failure from error
        await asyncio.sleep(min(config.retry_interval * 2 ** (attempt - 1), _LONGEST_PAUSE))
