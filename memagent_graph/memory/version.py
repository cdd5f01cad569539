"""One memory: an immutable version, named by a hash over all that led to it.

The ids form a chain, as the block hashes of a prefix cache do: equal ids mean that the same
reader, asked the same question, has read the same chunks in the same order.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.readers.base import Evidence, Memory, Recall, Unsupported
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.memory.atomic import Value

SCHEMA = 1
"""Of the records that this release writes; it reads these and older ones."""


@dataclass(frozen=True, slots=True)
class Told:
    """Who told a line of a profile, and when.

    Attributes:
        line: exactly as the memory has it.
        message: id of the message that says so; empty if that is not known.
        thread: of which conversation.
        at: when it was said (ISO 8601).
        until: when another value took its place, or it was taken out; empty while it stands.
    """

    line: str
    message: str
    thread: str
    at: str
    until: str = ""


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """The memory after one chunk, or after an edit.

    Attributes:
        id: `child_id` of a chunk, `merged_id`, or `edited_id`.
        parent: id of the version before; the `root` for the first.
        root: the `root_id` that the chain began with.
        merged: ids of the versions that one memory was made of, each the last of a segment, in
            their order; such a version has its root for its parent.
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
        unsupported: statements of it that nothing which was read accounts for.
        dropped: how many such statements were left out so far.
        parts: where several documents were joined, digest and name of each that the chunk is of.
        cut: whether the memory, or one before it, was over its budget and lost a part of it: its
            end, or of a conversation its oldest lines.
        edited: whether a person wrote it.
        unchanged: of a version whose chunk added nothing, the one before it that has its text,
            evidence and marks; it is stored without them.
        recall: what the next step of its reading is to show again; None for nothing.
        recalled: ids of versions of other memories that were shown with its chunk.
        enough: of a version with which reading ended because the reader had enough, the answer.
        query: of a merge, what the next round of its reading looks for; None if there is none.
        sought: of a merge, and of what is read after it, what the last round looked for; None for
            the question.
        thread: of a conversation's memory, the thread whose messages were folded into it.
        messages: ids of those messages.
        told: of a profile, who told its lines and when; with lines that stood before.
        skipped: spans of the document that were skimmed up to here and not read.
        again: whether it was read when what had been skipped was read after all.
        warnings: what had to give way for want of room, in words that quote nothing of it.
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
    unsupported: tuple[Unsupported, ...] = ()
    dropped: int = 0
    cut: bool = False
    edited: bool = False
    thread: str | None = None
    messages: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()
    told: tuple[Told, ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()
    again: bool = False
    warnings: tuple[str, ...] = ()
    unchanged: str | None = None
    recall: Recall | None = None
    recalled: tuple[str, ...] = ()
    enough: str | None = None
    query: str | None = None
    sought: str | None = None
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def to_record(self) -> Value:
        """As plain values, for a store: the fields, the schema, and a checksum over the fields."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["evidence"] = [_told(item) for item in self.evidence]
        values["messages"] = [*self.messages]
        values["unsupported"] = [[item.text, *item.missing] for item in self.unsupported]
        values["merged"] = [*self.merged]
        values["parts"] = [[*part] for part in self.parts]
        values["told"] = [[*astuple(item)] for item in self.told]
        values["skipped"] = [[*span] for span in self.skipped]
        values["warnings"] = [*self.warnings]
        values["recall"] = None if self.recall is None else _row(self.recall)
        values["recalled"] = [*self.recalled]
        for name in _RARE:
            if not values[name] and values[name] != "":
                del values[name]
        if self.unchanged:
            values = {name: value for name, value in values.items() if name not in _NOTED}
        return {**values, "schema": SCHEMA, "checksum": _checksum(values)}

    @property
    def memory(self) -> Memory:
        """What was noted, as readers take and give it."""
        return Memory(self.text, self.evidence, self.unsupported, self.dropped)

    @property
    def follows(self) -> list[str]:
        """Ids of the versions that it follows directly; none for the first of a chain."""
        return _before(self.parent, self.root, self.merged, self.recalled)

    @classmethod
    def from_record(
        cls, record: object, key: str = "", stored: Mapping[str, object] | None = None
    ) -> MemoryVersion:
        """From what `to_record` gave; what else the record holds is left out.

        Args:
            record: the record.
            key: of the item that it was found under, for messages, and compared with its id.
            stored: other records by their ids, among them the one that has its text.

        Raises:
            BadRecordError: The record is not a version, or was altered, or its text is gone.
            NewerRecordError: It is of a newer schema.
        """
        if not isinstance(record, dict):
            raise _bad(key, "it is not a record")
        schema = record.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            message = (
                f"The record of version {key} was written by a newer release (schema {schema}, "
                f"this one reads up to {SCHEMA}): upgrade memagent-graph."
            )
            raise NewerRecordError(message, key=key)
        values = {name: record[name] for name in _FIELDS if name in record}
        if record.get("checksum") != _checksum(values):
            raise _bad(key, "it was altered, cut short or written by something else")
        if key and values.get("id") != key:
            raise _bad(key, f"it is the record of {values.get('id')!r}")
        if holder := text_of(values):
            noted = (stored or {}).get(holder)
            if not isinstance(noted, dict) or text_of(noted):
                raise _bad(key, f"version {holder}, which has its text, is gone")
            cls.from_record(noted, holder)
            values |= {name: noted[name] for name in _NOTED if name in noted}
        try:
            values["evidence"] = tuple(Evidence(**item) for item in values["evidence"])
            marks = values.get("unsupported", ())
            values["unsupported"] = tuple(Unsupported(text, tuple(names)) for text, *names in marks)
            values["messages"] = tuple(values["messages"])
            values["merged"] = tuple(values.get("merged", ()))
            values["parts"] = tuple((digest, name) for digest, name in values.get("parts", ()))
            values["told"] = tuple(Told(*item) for item in values.get("told", ()))
            values["skipped"] = tuple((start, end) for start, end in values.get("skipped", ()))
            values["warnings"] = tuple(values.get("warnings", ()))
            values["recall"] = _recall(values.get("recall"))
            values["recalled"] = tuple(values.get("recalled", ()))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(key, "fields are missing") from error


_encoder = json.JSONEncoder(sort_keys=True, default=str)
_FIELDS = tuple(item.name for item in fields(MemoryVersion))
_RARE = (
    "merged",
    "parts",
    "unsupported",
    "dropped",
    "told",
    "skipped",
    "again",
    "warnings",
    "unchanged",
    "recall",
    "recalled",
    "enough",
    "query",
    "sought",
)
"""Fields that a record has if they are not empty."""
_NOTED = ("text", "evidence", "unsupported")
"""Fields that a record does not have if another one has them."""


def _told(item: Evidence) -> dict[str, Value]:
    """The fields, without page and heading where there are none."""
    return {name: value for name, value in asdict(item).items() if value is not None}


def edited(before: MemoryVersion, text: str) -> MemoryVersion:
    """The version that follows `before` when a person made its text `text`."""
    now = datetime.now(UTC).isoformat()
    return replace(
        before,
        id=edited_id(before.id, text, before.fingerprint),
        parent=before.id,
        text=text,
        tokens=EstimatingTokenizer().count(text),
        start=before.end,
        evidence=tuple(item for item in before.evidence if item.text in text),
        unsupported=tuple(item for item in before.unsupported if item.text in text),
        cut=False,
        edited=True,
        messages=(),
        merged=(),
        parts=(),
        told=still_told(before.told, text, now),
        warnings=(),
        unchanged=None,
        recall=None,
        recalled=(),
        enough=None,
        query=None,
        created_at=now,
    )


def still_told(told: Sequence[Told], text: str, now: str) -> tuple[Told, ...]:
    """The same, where lines that are no longer in the text stand until now."""
    lines = {*text.splitlines()}
    return tuple(
        item if item.until or item.line in lines else replace(item, until=now) for item in told
    )


def followed(record: Mapping[str, object]) -> list[str]:
    """As `MemoryVersion.follows`, of a record that need not be sound."""
    merged, recalled = (
        [str(key) for key in keys] if isinstance(keys, list) else []
        for keys in (record.get("merged"), record.get("recalled"))
    )
    return _before(str(record.get("parent")), record.get("root"), merged, recalled)


def _before(parent: str, root: object, merged: Sequence[str], recalled: Sequence[str]) -> list[str]:
    return [*recalled, *(() if parent == root else (parent,)), *merged]


def _row(recall: Recall) -> list[object]:
    span = None if recall.span is None else [*recall.span]
    return [recall.words, span, recall.earlier, recall.memory]


def _recall(values: Sequence[Any] | None) -> Recall | None:
    """From what `to_record` made of it."""
    if values is None:
        return None
    words, span, earlier, memory = values
    return Recall(words, None if span is None else (span[0], span[1]), earlier, memory)


def text_of(record: object) -> str | None:
    """The id of the version that has the text of this record, if it is another one."""
    holder = record.get("unchanged") if isinstance(record, dict) else None
    return holder if isinstance(holder, str) else None


def reading_key(root: str, source: str) -> str:
    """The name under which a reading without one is listed.

    Args:
        root: the `root_id` of its question and reader.
        source: the document's digest.
    """
    return f"{root[:8]}-{source[:8]}"


def root_id(question: str, fingerprint: str) -> str:
    """Where the chain of a question's readings begins, whatever the document."""
    return _digest("root", question, fingerprint)


def child_id(parent: str, chunk_digest: str, fingerprint: str, recalled: Sequence[str] = ()) -> str:
    """The version that follows `parent` when the reader has read a chunk.

    Args:
        parent: id of the version that was read from.
        chunk_digest: of the chunk.
        fingerprint: of the reading.
        recalled: what was shown again with it.
    """
    return _digest("chunk", parent, chunk_digest, fingerprint, *recalled)


def merged_id(versions: Sequence[str], fingerprint: str) -> str:
    """The version that was merged from others."""
    return _digest("merge", *versions, fingerprint)


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


def _checksum(values: Mapping[str, object]) -> str:
    return sha256(_encoder.encode(values).encode()).hexdigest()[:16]


def _bad(key: str, reason: str) -> BadRecordError:
    name = f"version {key}" if key else "a memory version"
    return BadRecordError(f"The record of {name} cannot be used: {reason}.", key=key)
