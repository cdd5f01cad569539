"""An immutable version of a memory, identified by a hash of everything that led to it.

The ids form a chain, like the block hashes of a prefix cache: equal ids mean that the same reader
has read the same chunks in the same order for the same question.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.evidence.places import Evidence, Memory, Recall, Unsupported
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memagent_graph.memory.atomic import Value

SCHEMA = 1
"""Schema of the records that this release writes; it also reads older ones."""


@dataclass(frozen=True, slots=True)
class LineSource:
    """The source of a line of a profile.

    Attributes:
        line: the line, exactly as the memory has it.
        message: id of the message that says so; "" if not known.
        thread: id of the conversation.
        at: time when it was said (ISO 8601).
        until: time when it was replaced or removed; "" while it holds.
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
        merged: ids of the versions that a merge combined, each the last of a segment, in order; the
            parent of such a version is its root.
        text: the memory.
        tokens: length of the text, in tokens.
        step: number of chunks read since the reading began.
        question: the question of the reading.
        source: digest of the document.
        source_name: name of the document.
        start: first code point of the chunk.
        end: one past the chunk's last code point; equal to `start` for an edit.
        length: length of the document, in code points.
        fingerprint: fingerprint of the reading: reader, tokenizer and budgets.
        evidence: places of the memory's statements in the document.
        unsupported: statements without support in the document.
        dropped: number of unsupported statements left out so far.
        parts: digest and name of each document in the chunk, if documents were joined.
        cut: whether this memory, or one before it, exceeded its budget and lost its end or, in a
            conversation, its oldest lines.
        edited: whether a person wrote it.
        unchanged: if the chunk added nothing, id of the earlier version with the same text,
            evidence and marks, which are not stored again.
        recall: request of the next step to see something again; None for none.
        recalled: ids of the versions of other memories that were shown with the chunk.
        enough: the answer, if reading ended because the reader had enough.
        query: query of the round after a merge; None without a next round.
        sought: query of the last round, for a merge and the versions after it; None for the
            question.
        thread: id of the thread whose messages were folded, for a conversation's memory.
        messages: ids of those messages.
        told: sources of a profile's lines, including lines that no longer hold.
        skipped: spans of the document that were skimmed so far and not read.
        again: whether the chunk had been skipped, and was read after all.
        warnings: descriptions of what was dropped for lack of room, without quotes.
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
    told: tuple[LineSource, ...] = ()
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
        """Return plain values for a store: fields, schema, and a checksum of the fields."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["evidence"] = [_evidence_fields(item) for item in self.evidence]
        values["messages"] = [*self.messages]
        values["unsupported"] = [[item.text, *item.missing] for item in self.unsupported]
        values["merged"] = [*self.merged]
        values["parts"] = [[*part] for part in self.parts]
        values["told"] = [[*astuple(item)] for item in self.told]
        values["skipped"] = [[*span] for span in self.skipped]
        values["warnings"] = [*self.warnings]
        values["recall"] = None if self.recall is None else _row(self.recall)
        values["recalled"] = [*self.recalled]
        values = {name: value for name, value in values.items() if _is_kept(name, value)}
        if self.unchanged:
            values = {name: value for name, value in values.items() if name not in _NOTED}
        return {**values, "schema": SCHEMA, "checksum": _checksum(values)}

    def to_stub(self) -> dict[str, Value]:
        """Return the record without the memory, to be completed by `from_stub`."""
        record = replace(self, unchanged=None).to_record()
        return {name: value for name, value in record.items() if name not in _NOTED}

    @classmethod
    def from_stub(cls, stub: Mapping[str, Value], memory: Memory) -> MemoryVersion:
        """Return the version of a stub; another memory than that of `to_stub` counts as edited.

        Raises:
            BadRecordError: It is not a stub.
        """
        noted = {
            "text": memory.text,
            "evidence": [_evidence_fields(item) for item in memory.evidence],
            "unsupported": [[item.text, *item.missing] for item in memory.unsupported],
        }
        values: dict[str, Any] = {
            **stub,
            **{name: value for name, value in noted.items() if _is_kept(name, value)},
        }
        known: dict[str, Any] = {name: values[name] for name in _FIELDS if name in values}
        if _checksum(known) != values.get("checksum"):
            values["edited"] = known["edited"] = True
            values["checksum"] = _checksum(known)
        return cls.from_record(values)

    @property
    def memory(self) -> Memory:
        """The memory as a record of readers."""
        return Memory(self.text, self.evidence, self.unsupported, self.dropped)

    @property
    def follows(self) -> list[str]:
        """Ids of the versions that it follows directly; [] for the first of a chain."""
        return _before(self.parent, self.root, self.merged, self.recalled)

    @classmethod
    def from_record(
        cls, record: object, key: str = "", stored: Mapping[str, object] | None = None
    ) -> MemoryVersion:
        """Return the version of a record made by `to_record`; other fields are ignored.

        Args:
            record: the record.
            key: key of the item, for messages; it must equal the version's id.
            stored: other records by id, including the one that has its text.

        Raises:
            BadRecordError: The record is not a version, was altered, or its text is gone.
            NewerRecordError: It has a newer schema.
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
            values["told"] = tuple(LineSource(*item) for item in values.get("told", ()))
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
"""Fields that are only stored if they are not empty."""
_NOTED = ("text", "evidence", "unsupported")
"""Fields that are not stored if an earlier version has them."""


def _is_kept(name: str, value: object) -> bool:
    """Whether a record has a field: a rare one only if it is not empty."""
    return name not in _RARE or bool(value) or value == ""


def _evidence_fields(item: Evidence) -> dict[str, Value]:
    """The fields of evidence that are not None."""
    return {name: value for name, value in asdict(item).items() if value is not None}


def edit_version(before: MemoryVersion, text: str) -> MemoryVersion:
    """Return the version that follows `before` after a person changed its text."""
    now = datetime.now(UTC).isoformat()
    return replace(
        before,
        id=edit_id(before.id, text, before.fingerprint),
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
        told=end_gone(before.told, text, now),
        warnings=(),
        unchanged=None,
        recall=None,
        recalled=(),
        enough=None,
        query=None,
        created_at=now,
    )


def end_gone(sources: Sequence[LineSource], text: str, now: str) -> tuple[LineSource, ...]:
    """Return the sources, where lines that are no longer in the text end now."""
    lines = {*text.splitlines()}
    return tuple(
        item if item.until or item.line in lines else replace(item, until=now) for item in sources
    )


def follows_of(record: Mapping[str, object]) -> list[str]:
    """Return `MemoryVersion.follows` of a record, which may be damaged."""
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
    """The inverse of `_row`."""
    if values is None:
        return None
    words, span, earlier, memory = values
    return Recall(words, None if span is None else (span[0], span[1]), earlier, memory)


def text_of(record: object) -> str | None:
    """Return the id of the other version that has this record's text; None without one."""
    holder = record.get("unchanged") if isinstance(record, dict) else None
    return holder if isinstance(holder, str) else None


def make_reading_key(root: str, source: str) -> str:
    """Return the key under which a reading without a name is listed.

    Args:
        root: the `root_id` of its question and reader.
        source: the document's digest.
    """
    return f"{root[:8]}-{source[:8]}"


def root_id(question: str, fingerprint: str) -> str:
    """Return the id with which the chains of a question begin, for all documents."""
    return _digest("root", question, fingerprint)


def child_id(parent: str, chunk_digest: str, fingerprint: str, recalled: Sequence[str] = ()) -> str:
    """Return the id of the version that follows `parent` after a chunk.

    Args:
        parent: id of the version before.
        chunk_digest: digest of the chunk.
        fingerprint: fingerprint of the reading.
        recalled: ids of what was shown again with the chunk.
    """
    return _digest("chunk", parent, chunk_digest, fingerprint, *recalled)


def merge_id(versions: Sequence[str], fingerprint: str) -> str:
    """Return the id of a merge of versions."""
    return _digest("merge", *versions, fingerprint)


def edit_id(parent: str, text: str, fingerprint: str) -> str:
    """Return the id of an edit of `parent`."""
    return _digest("edit", parent, text, fingerprint)


def make_fingerprint(*parts: object) -> str:
    """Return a digest of everything that shapes a reading's memories."""
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


class History(list[MemoryVersion]):
    """The versions that led to a memory, newest first.

    Attributes:
        gaps: ids of versions that are missing in between: expired, evicted or thinned out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[str] = []


def walk(
    tip: MemoryVersion, stored: Mapping[str, MemoryVersion], own: Iterable[MemoryVersion]
) -> History:
    """Return the history of a version, which continues beyond gaps; the last merged comes first.

    Args:
        tip: the newest version.
        stored: versions by id.
        own: versions of the memory, with which the history continues beyond a gap.
    """
    history = History()
    listed: set[str] = set()
    wanted = [tip.id]
    while wanted:
        key = wanted.pop()
        if key in listed:
            continue
        found = tip if key == tip.id else stored.get(key)
        if found is None:
            history.gaps.append(key)
            left = [version for version in own if version.id not in listed]
            found = _newest_end(left, listed | {*wanted})
            if found is None:
                continue
        history.append(found)
        listed.add(found.id)
        wanted += found.follows
    return history


def _newest_end(left: list[MemoryVersion], listed: set[str]) -> MemoryVersion | None:
    """The newest version that no other follows, except for branches off the history."""
    followed = {key for version in left for key in version.follows}
    ends = [v for v in left if v.id not in followed | listed and v.parent not in listed]
    return max(ends, key=lambda version: version.created_at, default=None)


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """Yield a diff of two memories: lines that begin with "+", "-" or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
