"""An immutable version of a memory, identified by a hash of everything that led to it.

The ids form a chain, like the block hashes of a prefix cache: equal ids mean that the same reader
has read the same chunks in the same order for the same question.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.evidence.places import Memory, from_plain, to_plain, with_text
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memagent_graph.memory.store import Value

SCHEMA = 1
"""Schema of the records that this release writes; it also reads older ones."""


Documents = tuple[tuple[str, str], ...]
"""Digests and names of documents."""


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
class ReadDocument:
    """A document, and how far it was read.

    Attributes:
        digest: digest of its content.
        name: its name; for a conversation, the thread's id.
        length: its length, in code points.
        end: one past the last code point that was read.
        skipped: spans that were skimmed so far and not read.
        again: whether what was skipped is read after all.
        begin: first code point of the segment that was read; 0 for a whole document.
    """

    digest: str
    name: str
    length: int
    end: int
    skipped: tuple[tuple[int, int], ...] = ()
    again: bool = False
    begin: int = 0

    @property
    def share(self) -> float:
        """Share of the document up to `end`, 0 to 1."""
        return self.end / self.length if self.length else 1.0


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """The chunk of the document that was read.

    Attributes:
        start: first code point of the chunk, which ends at `ReadDocument.end`.
        parts: digest and name of each document in the chunk, if documents were joined.
    """

    start: int
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class VersionMerge:
    """The versions of segments that were merged.

    Attributes:
        merged: ids of their versions, each the last of a segment, in order.
    """

    merged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextEdit:
    """The edit of a user.

    Attributes:
        thread: id of the thread folded last, in a conversation's memory; None in a reading's.
    """

    thread: str | None = None


@dataclass(frozen=True, slots=True)
class MessageFold:
    """The messages of a conversation that were folded.

    Attributes:
        thread: id of their thread.
        messages: ids of the thread's messages that were folded last.
        corrects: whether some had been folded before, and were edited or taken back.
    """

    thread: str
    messages: tuple[str, ...] = ()
    corrects: bool = False


MadeBy = ChunkRead | VersionMerge | TextEdit | MessageFold
"""What made a version."""


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """The memory after one chunk, a merge, an edit, or some messages of a conversation.

    Attributes:
        id: `child_id` of a chunk or of messages, `merge_id`, or `edit_id`.
        parent: id of the version before; the `root` for the first, and for a merge.
        root: the `root_id` that the chain began with.
        question: the question of the reading.
        fingerprint: fingerprint of the reading: reader, tokenizer and budgets.
        step: number of chunks read since the reading began.
        document: the document, and how far it was read.
        memory: the text, its places in the document, and its marks.
        tokens: length of the text, in tokens.
        made_by: what made this version.
        edited: whether a user wrote the text: by a `TextEdit`, or in the state of a reading.
        cut: whether this memory, or one before it, exceeded its budget and lost its end or, in a
            conversation, its oldest lines.
        unchanged: whether the reader said that the chunk added nothing.
        told: sources of the lines of a profile or of facts, including lines that no longer hold.
        warnings: descriptions of what was dropped for lack of room, without quotes.
        sources: digests and names of the documents that the versions which it follows are made
            from, if they are not its own; see `documents`.
        created_at: ISO 8601, UTC.
    """

    id: str
    parent: str
    root: str
    question: str
    fingerprint: str
    step: int
    document: ReadDocument
    memory: Memory
    tokens: int
    made_by: MadeBy
    edited: bool = False
    cut: bool = False
    unchanged: bool = False
    told: tuple[LineSource, ...] = ()
    warnings: tuple[str, ...] = ()
    sources: Documents = ()
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def text(self) -> str:
        """The text of the memory."""
        return self.memory.text

    @property
    def thread(self) -> str | None:
        """Id of the thread folded last, in a conversation's memory; None in a reading's."""
        return self.made_by.thread if isinstance(self.made_by, TextEdit | MessageFold) else None

    @property
    def span(self) -> tuple[int, int]:
        """The part of the document that was read for it: start and end; empty for an edit."""
        end = self.document.end
        if isinstance(self.made_by, ChunkRead):
            return self.made_by.start, end
        return end if isinstance(self.made_by, TextEdit) else 0, end

    @property
    def parents(self) -> list[str]:
        """Ids of the versions whose memories it continues; [] for the first of a chain."""
        if isinstance(self.made_by, VersionMerge):
            return [*self.made_by.merged]
        return [] if self.parent == self.root else [self.parent]

    @property
    def documents(self) -> Documents:
        """Digests and names of the documents that it is made from.

        Joined ones count as one, which is named again by an empty name.
        """
        if self.thread:
            return self.sources
        joined = isinstance(self.made_by, ChunkRead) and self.made_by.parts
        digest, name = self.document.digest, self.document.name
        own = [(digest, name), *([(digest, "")] if joined else [])]
        return tuple(dict.fromkeys([*self.sources, *own]))

    def to_record(self, owners: Iterable[str] | None = None) -> Value:
        """Return plain values for a store: fields, schema, and a checksum of the fields.

        A stored record has its `owners`: the memories that it belongs to.
        """
        values = {
            **_values_of(self),
            **_values_of(self.document),
            **_values_of(self.made_by),
            "made_by": _KIND_NAMES[type(self.made_by)],
            **to_plain(self.memory),
        }
        names = {} if owners is None else {"owners": sorted(owners)}
        return {**values, **names, "schema": SCHEMA, "checksum": _checksum(values)}

    def to_stub(self) -> dict[str, Value]:
        """Return the record without the memory, to be completed by `from_stub`."""
        own = to_plain(self.memory)
        return {name: value for name, value in self.to_record().items() if name not in own}

    @classmethod
    def from_stub(cls, stub: Mapping[str, Value], memory: Memory) -> MemoryVersion:
        """Return the version of a stub; another memory than that of `to_stub` counts as edited."""
        values: dict[str, Any] = {**stub, **to_plain(memory)}
        known = _fields_in(values)
        if _checksum(known) != values.get("checksum"):
            values["edited"] = known["edited"] = True
            values["checksum"] = _checksum(known)
        return cls.from_record(values)

    @classmethod
    def from_record(cls, record: object, key: str = "") -> MemoryVersion:
        """Return the version of a record made by `to_record`; other fields are ignored.

        If `key` is given, it must equal the version's id. A `BadRecordError` in place of a record
        is raised. `NewerRecordError` is raised for a newer schema, and `BadRecordError` for what is
        no version or was altered.
        """
        if isinstance(record, BadRecordError):
            raise record
        if not isinstance(record, dict):
            raise _bad(key, "it is not a record")
        schema = record.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            message = (
                f"The record of version {key} was written by a newer release (schema {schema}, "
                f"this one reads up to {SCHEMA}): upgrade memagent-graph."
            )
            raise NewerRecordError(message, key=key)
        values = _fields_in(record)
        if record.get("checksum") != _checksum(values):
            raise _bad(key, "it was altered, cut short or written by something else")
        if key and values.get("id") != key:
            raise _bad(key, f"it is the record of {values.get('id')!r}")
        try:
            own = _take(cls, values)
            own["document"] = ReadDocument(**_take(ReadDocument, values))
            own["memory"] = from_plain(values)
            kind = _KINDS[values["made_by"]]
            own["made_by"] = kind(**_take(kind, values))
            own["told"] = tuple(LineSource(*row) for row in own.get("told", ()))
            return cls(**own)
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(key, "fields are missing") from error


_KINDS: dict[str, type[MadeBy]] = {
    "read": ChunkRead,
    "merge": VersionMerge,
    "edit": TextEdit,
    "fold": MessageFold,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_PARTS = (MemoryVersion, ReadDocument, *_KINDS.values())
_FIELDS = frozenset(["places", *(item.name for part in _PARTS for item in fields(part))])
_NESTED = {"document", "memory", "made_by"}
_encoder = json.JSONEncoder(sort_keys=True, default=str)


def _values_of(part: MemoryVersion | ReadDocument | MadeBy) -> Value:
    """The plain values of those fields that do not have their defaults."""
    own = [item for item in fields(part) if item.name not in _NESTED]
    found = ((item, getattr(part, item.name)) for item in own)
    return {item.name: _plain(value) for item, value in found if value != item.default}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return [_plain(getattr(value, item.name)) for item in fields(value)]
    return value


def _fields_in(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name in _FIELDS}


def _take(
    part: type[MemoryVersion | ReadDocument | MadeBy], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a part of a version, of which lists become tuples."""
    return {name: _freeze(values[name]) for name in part.__slots__ if name in values}


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def edit_version(before: MemoryVersion, text: str) -> MemoryVersion:
    """Return the version that follows `before` after a user changed its text."""
    now = datetime.now(UTC).isoformat()
    return replace(
        before,
        id=edit_id(before.id, text, before.fingerprint),
        parent=before.id,
        memory=with_text(text, before.memory),
        tokens=EstimatingTokenizer().count(text),
        made_by=TextEdit(before.thread),
        edited=True,
        cut=False,
        unchanged=False,
        told=end_gone(before.told, text, now),
        warnings=(),
        created_at=now,
    )


def end_gone(sources: Sequence[LineSource], text: str, now: str) -> tuple[LineSource, ...]:
    """Return the sources, where lines that are no longer in the text end now."""
    lines = {*text.splitlines()}
    return tuple(
        item if item.until or item.line in lines else replace(item, until=now) for item in sources
    )


def follows_of(record: Mapping[str, object]) -> list[str]:
    """Return `MemoryVersion.parents` of a record, which may be damaged."""
    keys = record.get("merged")
    more = [str(key) for key in keys] if isinstance(keys, list) else []
    parent = str(record.get("parent"))
    return more if parent == record.get("root") else [*more, parent]


Rows = list[list[str]]
"""Digests and names of documents, in a record."""


def rows_of(value: Value) -> Rows:
    """Return the documents that a version is made from, those that it follows first."""
    return sound_rows(value.get("sources")) + own_rows(value)


def own_rows(value: Value) -> Rows:
    """Return the documents that were read for a version itself."""
    own = [] if value.get("thread") else [[value.get("digest"), value.get("name")]]
    return sound_rows(own) + sound_rows(value.get("parts"))


def sound_rows(rows: object) -> Rows:
    """Return digests and names of documents from a field of a record, which may be damaged."""
    if not isinstance(rows, list | tuple):
        return []
    pairs = [row for row in rows if isinstance(row, list | tuple) and len(row) == len(("", ""))]
    return [[str(digest), str(name)] for digest, name in pairs if digest]


def make_reading_key(root: str, source: str) -> str:
    """Return the key under which a reading without a name is listed."""
    return f"{root[:8]}-{source[:8]}"


def root_id(question: str, fingerprint: str) -> str:
    """Return the id with which the chains of a question begin, for all documents."""
    return _digest("root", question, fingerprint)


def child_id(parent: str, chunk_digest: str, fingerprint: str) -> str:
    """Return the id of the version that follows `parent` after a chunk."""
    return _digest("chunk", parent, chunk_digest, fingerprint)


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

    It is taken from `stored` versions by id, and beyond a gap from the memory's `own`.
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
        wanted += found.parents
    return history


def _newest_end(left: list[MemoryVersion], listed: set[str]) -> MemoryVersion | None:
    """The newest version that no other follows, except for branches off the history."""
    followed = {key for version in left for key in version.parents}
    ends = [v for v in left if v.id not in followed | listed and v.parent not in listed]
    return max(ends, key=lambda version: version.created_at, default=None)


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """Yield a diff of two memories: lines that begin with "+", "-" or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
