"""One hierarchy: the type tells a program what happened, the message tells a person what to do."""

from __future__ import annotations


class MemAgentError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigurationError(MemAgentError, ValueError):
    """Budgets, switches, prompts or a model name that cannot work together."""


class QuestionError(MemAgentError, ValueError):
    """The question is empty or longer than `ReadingConfig.question_tokens`.

    Attributes:
        question: as it was asked; None if there is none.
    """

    def __init__(self, message: str, *, question: str | None = None) -> None:
        super().__init__(message)
        self.question = question


class MissingDependencyError(MemAgentError, ImportError):
    """An optional package is needed; the message names the extra to install."""


class SourceError(MemAgentError):
    """A document cannot be read."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A path names nothing, or a glob matches nothing."""


class UnreadableSourceError(SourceError):
    """A file is binary, or no text can be taken from it."""


class ConversionLimitError(UnreadableSourceError):
    """Converting a document to text would take too much.

    Attributes:
        limit: what there would be too much of: "time", "memory" or "output".
    """

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class EmptyDocumentError(SourceError, ValueError):
    """There is nothing to read: no text, or only white space."""


class SourceChangedError(SourceError):
    """The document is no longer the one that the reading began with."""


class ModelError(MemAgentError):
    """A model call failed for good. What was read so far is kept.

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
    """

    def __init__(
        self, message: str, *, chunk: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, chunk=chunk)
        self.retry_after = retry_after


class EmptyReplyError(TransientModelError):
    """The model answered with no text at all."""


class ContextLengthError(ModelError):
    """The prompt is longer than the model's window; the graph halves the chunk."""


class RefusalError(ModelError):
    """The model, or its provider's filter, declined to answer."""


class ResponseFormatError(ModelError):
    """The model's answer does not match the `response_format`, after it was asked to correct it.

    Attributes:
        reply: the model's last.
    """

    def __init__(self, message: str, *, chunk: int | None = None, reply: str = "") -> None:
        super().__init__(message, chunk=chunk)
        self.reply = reply


class StoreError(MemAgentError):
    """The memory store cannot be reached or refused an operation."""


class StoreRefusedError(StoreError):
    """The store answered, and would not do it: it has no memory left, or the user no right."""


class BadRecordError(StoreError):
    """What is stored under a key cannot be read: cut short, altered, or of something else.

    Attributes:
        key: of the item.
        namespace: of the item, where the store says it.
    """

    def __init__(self, message: str, *, key: str, namespace: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.namespace = namespace


class NewerRecordError(BadRecordError):
    """A newer release wrote what is stored: upgrade to read it. It is never replaced or mended."""


class MemoryNotFoundError(StoreError, KeyError):
    """No memory has this name or version id."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class MemoryConflictError(StoreError):
    """A named memory moved on too many times while this reading tried to add to it."""


class TraceError(MemAgentError, ValueError):
    """A recorded conversation, reward or group that nothing can be learned from."""


def error_of(kind: str | None, message: str) -> MemAgentError:
    """The error that a record tells of.

    Args:
        kind: name of its type.
        message: of the error.
    """
    return _KINDS.get(kind or "", MemAgentError)(message)


_KINDS: dict[str, type[MemAgentError]] = {
    kind.__name__: kind
    for kind in (
        ConfigurationError,
        QuestionError,
        SourceError,
        SourceChangedError,
        ModelError,
        EmptyReplyError,
        ContextLengthError,
        RefusalError,
        ResponseFormatError,
        StoreError,
        StoreRefusedError,
        MemoryNotFoundError,
        MemoryConflictError,
    )
}
"""Those that one question of several can fail with, and that a message alone makes."""
