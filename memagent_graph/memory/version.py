"""One memory: an immutable version, named by a hash over all that led to it.

The ids form a chain, as the block hashes of a prefix cache do: equal ids mean that the same
reader, asked the same question, has read the same chunks in the same order.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from memagent_graph.errors import StoreError
from memagent_graph.readers.base import Evidence


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """The memory after one chunk, or after an edit.

    Attributes:
        id: `child_id` of a chunk, or `edited_id`.
        parent: id of the version before; the `root` for the first.
        root: the `root_id` that the chain began with.
        text: the memory.
        tokens: its size.
        step: chunks read, counted from the reading's start.
        question: what the reading was asked.
        source: digest of the document.
        source_name: what to call the document.
        start: first code point of the chunk.
        end: one past its last; equal to `start` for an edit.
        length: code points of the document.
        fingerprint: of the reading: reader, tokenizer and budgets.
        evidence: where the memory's statements came from.
        cut: whether the memory was over its budget and lost its end.
        edited: whether a person wrote it.
        thread: of a conversation's memory, the thread whose messages were folded into it.
        messages: ids of those messages.
        created_at: ISO 8601, UTC.
    """

    id: str
    parent: str
    root: str
    text: str
    tokens: int
    step: int
    question: str
    source: str
    source_name: str
    start: int
    end: int
    length: int
    fingerprint: str
    evidence: tuple[Evidence, ...] = ()
    cut: bool = False
    edited: bool = False
    thread: str | None = None
    messages: tuple[str, ...] = ()
    created_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat())

    def to_record(self) -> dict[str, Any]:
        """As plain values, for a store."""
        return {**asdict(self), "evidence": [asdict(item) for item in self.evidence]}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> MemoryVersion:
        """From what `to_record` gave; fields of later releases are left out.

        Raises:
            StoreError: The record is not a version.
        """
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        try:
            values["evidence"] = tuple(Evidence(**item) for item in values.get("evidence", ()))
            values["messages"] = tuple(values.get("messages", ()))
            return cls(**values)
        except TypeError as error:
            message = f"Not a memory version: {sorted(record)}. Was it written by something else?"
            raise StoreError(message) from error


def root_id(question: str, fingerprint: str) -> str:
    """Where the chain of a question's readings begins, whatever the document."""
    return _digest("root", question, fingerprint)


def child_id(parent: str, chunk_digest: str, fingerprint: str) -> str:
    """The version that follows `parent` when the reader has read a chunk."""
    return _digest("chunk", parent, chunk_digest, fingerprint)


def edited_id(parent: str, text: str, fingerprint: str) -> str:
    """The version that follows `parent` when a person made it `text`."""
    return _digest("edit", parent, text, fingerprint)


def reading_fingerprint(*parts: object) -> str:
    """Stands for everything that shapes a reading's memories."""
    return _digest(*map(str, parts))


def _digest(*parts: str) -> str:
    # JSON keeps the parts apart: ("ab", "c") and ("a", "bc") must not share an id. It also
    # writes lone surrogates, which UTF-8 cannot.
    return sha256(json.dumps(parts).encode()).hexdigest()[:32]
