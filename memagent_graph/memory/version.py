"""An immutable version of a memory, identified by a hash of everything that led to it.

The ids form a chain, like the block hashes of a prefix cache: equal ids mean that the same reader
has read the same chunks in the same order for the same question.
"""

from __future__ import annotations

import difflib
import json
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, GetPydanticSchema, PlainSerializer, TypeAdapter

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
    parts: Documents = ()
    kind: Literal["read"] = "read"


@dataclass(frozen=True, slots=True)
class VersionMerge:
    """The versions of segments that were merged.

    Attributes:
        merged: ids of their versions, each the last of a segment, in order.
    """

    merged: tuple[str, ...]
    kind: Literal["merge"] = "merge"


@dataclass(frozen=True, slots=True)
class TextEdit:
    """The edit of a user.

    Attributes:
        thread: id of the thread folded last, in a conversation's memory; None in a reading's.
    """

    thread: str | None = None
    kind: Literal["edit"] = "edit"


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
    kind: Literal["fold"] = "fold"


MadeBy = Annotated[ChunkRead | VersionMerge | TextEdit | MessageFold, Discriminator("kind")]
"""What made a version; in a record, `kind` tells which."""
_Notes = Annotated[
    Memory,
    GetPydanticSchema(lambda _, make: make(Any)),  # not its own, which has what is never stored
    BeforeValidator(from_plain),
    PlainSerializer(to_plain, return_type=dict),
]
_Line = Annotated[
    LineSource, BeforeValidator(lambda row: LineSource(*row)), PlainSerializer(astuple)
]


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
    memory: _Notes
    tokens: int
    made_by: MadeBy
    edited: bool = False
    cut: bool = False
    unchanged: bool = False
    told: tuple[_Line, ...] = ()
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
    def own(self) -> Documents:
        """Digests and names of what was read for it itself: a document, and those joined in it."""
        if self.thread is not None:
            return ()
        parts = self.made_by.parts if isinstance(self.made_by, ChunkRead) else ()
        return (self.document.digest, self.document.name), *parts

    @property
    def made_from(self) -> Documents:
        """Digests and names of all documents that it is known to be made from."""
        return self.sources + self.own

    @property
    def documents(self) -> Documents:
        """The documents that a version which follows it has as `sources`.

        Joined ones count as one, which is named again by an empty name.
        """
        whole, parts = self.own[:1], self.own[1:]
        again = tuple((digest, "") for digest, _ in whole if parts)
        return tuple(dict.fromkeys(self.sources + whole + again))

    def to_record(self, owners: Iterable[str] | None = None) -> Value:
        """Return plain values for a store: the content, its schema and its checksum.

        A stored record has its `owners`: the memories that it belongs to.
        """
        content = _content.dump_python(self, mode="json")
        names = {} if owners is None else {"owners": sorted(owners)}
        return {"content": content, **names, "schema": SCHEMA, "checksum": _checksum(content)}

    def to_stub(self) -> Value:
        """Return the record without the memory, to be completed by `from_stub`."""
        record = self.to_record()
        del record["content"]["memory"]
        return record

    @classmethod
    def from_stub(cls, stub: Value, memory: Memory) -> MemoryVersion:
        """Return the version of a stub; another memory than that of `to_stub` counts as edited."""
        content = {**stub["content"], "memory": to_plain(memory)}
        content["edited"] = content["edited"] or _checksum(content) != stub["checksum"]
        return cls.from_record({**stub, "content": content, "checksum": _checksum(content)})

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
        if record.get("checksum") != _checksum(record.get("content")):
            raise _bad(key, "it was altered, cut short or written by something else")
        found = read_version(record)
        if found is None:
            raise _bad(key, "fields are missing")
        if key and found.id != key:
            raise _bad(key, f"it is the record of {found.id!r}")
        return found


def read_version(record: object) -> MemoryVersion | None:
    """Return the version of a record that may have been altered; None if it cannot be read."""
    with suppress(KeyError, TypeError, ValueError):
        if isinstance(record, dict):
            return _content.validate_python(record["content"])
    return None


_content = TypeAdapter(MemoryVersion)
_encoder = json.JSONEncoder(sort_keys=True, default=str)


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


def _checksum(content: object) -> str:
    return sha256(_encoder.encode(content).encode()).hexdigest()[:16]


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
