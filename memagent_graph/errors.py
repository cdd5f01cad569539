"""One hierarchy: the type says what happened, the message says what to do."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemAgentError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigurationError(MemAgentError, ValueError):
    """Budgets, switches, prompts or a model name that cannot work together."""


class QuestionError(MemAgentError, ValueError):
    """The question is empty or longer than `ReadingConfig.question_tokens`.

    Attributes:
        question: the question as it was asked; None if there is none.
    """

    def __init__(self, message: str, *, question: str | None = None) -> None:
        super().__init__(message)
        self.question = question


class MissingDependencyError(MemAgentError, ImportError):
    """An optional package is needed; the message names the extra to install."""


@contextmanager
def install_hint(hint: str) -> Iterator[None]:
    """Say what to install where an import fails; raises `MissingDependencyError`."""
    try:
        yield
    except ImportError as error:
        message = f"{hint} ({error})"
        raise MissingDependencyError(message) from error


class SourceError(MemAgentError):
    """A document cannot be read."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A path names nothing, or a glob matches nothing."""


class UnreadableSourceError(SourceError):
    """A file is binary, or text cannot be extracted from it."""


class ConversionLimitError(UnreadableSourceError):
    """Converting a document to text exceeds a limit.

    Attributes:
        limit: the limit that it exceeds: "time", "memory" or "output".
    """

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class EmptyDocumentError(SourceError, ValueError):
    """A document has no text, or only white space."""


class SourceChangedError(SourceError):
    """The document is no longer the one that the reading began with."""


class ModelError(MemAgentError):
    """A model call failed for good. Everything read so far is kept.

    Attributes:
        chunk: number of the chunk being read, counted from 1; None while answering or
            before the graph knows it.
    """

    def __init__(self, message: str, *, chunk: int | None = None) -> None:
        super().__init__(message)
        self.chunk = chunk


class TransientModelError(ModelError):
    """A model call failed in a way that a repeat may cure; the graph repeats it with backoff.

    Attributes:
        retry_after: seconds that the server asked callers to wait, if it said.
        patience: seconds for which the call is worth repeating, however often: of a server that
            answered before, and may be starting again. 0 for other errors.
    """

    def __init__(
        self, message: str, *, chunk: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, chunk=chunk)
        self.retry_after = retry_after
        self.patience = 0.0


class EmptyReplyError(TransientModelError):
    """The model's reply has no text."""


class ContextLengthError(ModelError):
    """The prompt is longer than the model's window; the graph halves the chunk."""


class BadRequestError(ModelError):
    """The server rejected the request, for a reason that is not recognized.

    The graph halves the chunk for as long as the prompt is long: its length may be the reason.
    """


class RefusalError(ModelError):
    """The model, or its provider's filter, declined to answer."""


class ResponseFormatError(ModelError):
    """The model's answer does not match the `response_format`, even after a correction.

    Attributes:
        reply: the model's last reply.
    """

    def __init__(self, message: str, *, chunk: int | None = None, reply: str = "") -> None:
        super().__init__(message, chunk=chunk)
        self.reply = reply


class StoreError(MemAgentError):
    """The memory store cannot be reached or refused an operation."""


class StoreRefusedError(StoreError):
    """The store refused an operation: it is full, or the user lacks a right."""


class BadRecordError(StoreError):
    """A stored record cannot be read: it is truncated, altered, or not a record.

    Attributes:
        key: the key of the record.
        namespace: its namespace, if the store reports it.
    """

    def __init__(self, message: str, *, key: str, namespace: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.namespace = namespace


class NewerRecordError(BadRecordError):
    """A newer release wrote the record: upgrade to read it. It is never replaced or repaired."""


class MemoryNotFoundError(StoreError, KeyError):
    """No memory has this name or version id."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class MemoryConflictError(StoreError):
    """Other writers changed a named memory too many times while this one tried to."""


class TraceError(MemAgentError, ValueError):
    """A recorded conversation, reward or group is not usable for training."""


def error_of(kind: str | None, message: str) -> MemAgentError:
    """Make the error that a record describes, by the name of its type and its message."""
    found = globals().get(kind or "")
    if isinstance(found, type) and issubclass(found, MemAgentError):
        with suppress(TypeError):  # it needs more than a message
            return found(message)
    return MemAgentError(message)
