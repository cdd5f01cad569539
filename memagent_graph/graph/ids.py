"""The versions of a fold: their ids, and their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from memagent_graph.errors import BadRecordError
from memagent_graph.graph.state import VERSIONS, is_segmented, memory_of, spans_of
from memagent_graph.memory.version import (
    MemoryVersion,
    child_id,
    make_fingerprint,
    make_reading_key,
    merge_id,
    root_id,
)
from memagent_graph.sync import see_checkpoints, wait_for
from memagent_graph.text.source import identify_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from memagent_graph.evidence.places import Recall, Recalled
    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Document, Fold, Scope
    from memagent_graph.text.chunks import Chunk

_HAS = {"question", "source", "scope", "memory", "places", "progress", "layers"}
"""Channels of a fold that has begun."""


class Lineage:
    """The versions of a fold, whether they are stored or not. The first is the root.

    Args:
        reading: the reading's settings.
        fold: the fold, of a document or of a segment of one.
        reuses: whether versions are taken over from readings of the same.
        whole: for a segment, the lineage of the document.

    Attributes:
        question: the fold's question.
        fingerprint: distinguishes its versions from those of other settings; if memories are not
            reused, from those of any other run.
        reuses: whether versions are taken over from readings of the same.
        thins: whether only the newest versions are kept.
        is_segment: whether it is that of a segment.
        is_listed: whether its ids follow from the document alone, before anything is read.
        root: the id before the first chunk.
    """

    def __init__(
        self,
        reading: Reading,
        fold: Fold,
        *,
        reuses: bool,
        whole: Lineage | None = None,
    ) -> None:
        known, question = _fingerprint(reading, fold["scope"]), fold["question"]
        self.question, self.reuses = question, reuses
        self.fingerprint = known if reuses else make_fingerprint(known, uuid4())
        self.thins = reading.config.keep_versions is not None
        self.is_segment = whole is not None
        self.is_listed = not any(layer.depends_on_memory(question) for layer in reading.layers)
        self.root = root_id(question, self.fingerprint)
        self._asked = root_id(question, known)
        self._whole = self if whole is None else whole
        self._reading = reading

    def memory(self, fold: Fold) -> str:
        """Return the memory that the versions belong to: its name, or the reading's key."""
        name = fold["scope"]["memory_name"]
        return name or make_reading_key(self._whole.root, fold["source"]["digest"])

    def identify(self, source: Document) -> str:
        """Return the fingerprint of a reading: of its question, settings and document."""
        return make_fingerprint(self._asked, source["digest"])

    def child(self, parent: str, chunk: Chunk, recalled: Sequence[Recalled] = ()) -> str:
        """Return the id after a chunk that is read from `parent`, with what is shown again."""
        shown = [
            "\n".join([item.place, item.text, *(one.picture.digest for one in item.pictures)])
            for item in recalled
        ]
        return child_id(parent, chunk.digest, self.fingerprint, shown)

    def first_of_each(self, cutter: Cutter) -> list[str]:
        """Return for each chunk the first id of a segment that begins there."""
        found = []
        for start in cutter.cuts:
            chunk = cutter.cut(start)
            assert chunk is not None  # noqa: S101 - it was cut
            fingerprint = _from(self._reading.fingerprint, start)
            root = root_id(self.question, fingerprint)
            found.append(child_id(root, chunk.digest, fingerprint))
        return found

    def id_of_merge(self, parts: Sequence[Fold]) -> str | None:
        """Return the id of what is merged from segments; None if nothing was read of them."""
        ids = _read_versions(parts)
        return merge_id(ids, self.fingerprint) if ids else None

    def make_root(self, source: Document) -> MemoryVersion:
        """Return the root, which is not stored, as a version that an edit follows."""
        return MemoryVersion(
            id=self.root,
            parent="",
            root=self.root,
            text="",
            tokens=0,
            step=0,
            question=self.question,
            source=source["digest"],
            source_name=source["name"],
            start=0,
            end=0,
            length=source["length"],
            fingerprint=self.fingerprint,
        )

    def after_chunk(
        self,
        parent: str,
        fold: Fold,
        chunk: Chunk,
        tokens: int,
        *,
        recalled: Sequence[Recalled],
        recall: Recall | None,
        unchanged: str | None,
    ) -> MemoryVersion:
        """Return the version after a chunk.

        Args:
            parent: id of the version that the chunk was read from.
            fold: the fold after the chunk.
            chunk: the chunk.
            tokens: length of the memory in tokens.
            recalled: passages and memories that were shown with the chunk.
            recall: what the update asked to see again.
            unchanged: id of the version that has the same text, which is then not stored again.
        """
        progress, memory = fold["progress"], memory_of(fold)
        return MemoryVersion(
            id=self.child(parent, chunk, recalled),
            parent=parent,
            root=self.root,
            text=memory.text,
            tokens=tokens,
            step=progress["step"],
            question=self.question,
            source=chunk.source.digest,
            source_name=chunk.source.name,
            start=chunk.start,
            end=chunk.end,
            length=chunk.source.length,
            fingerprint=self.fingerprint,
            evidence=memory.evidence,
            unsupported=memory.unsupported,
            dropped=memory.dropped,
            cut=progress["cut"],
            parts=_parts_of(chunk, recalled),
            unchanged=unchanged,
            skipped=tuple((start, end) for start, end in progress["skipped"]),
            again=progress["again"],
            recall=recall,
            recalled=tuple(item.version for item in recalled if item.version is not None),
            enough=progress["enough"] if progress["stopped"] == "done" else None,
            sought=_sought(fold["scope"]),
        )

    def with_version(self, fold: Fold, version: MemoryVersion) -> Fold:
        """Return a fold that ends with a version, and from which `version_of` makes it again."""
        stub, known = version.to_stub(), _fields_of(fold)
        made = {name: value for name, value in stub.items() if known.get(name, known) != value}
        progress = {**fold["progress"], "version": version.id}
        layers = {**fold["layers"], VERSIONS: {"made": made}}
        return {**fold, "progress": progress, "layers": layers}  # type: ignore[typeddict-item]

    def after_merge(
        self, fold: Fold, parts: Sequence[Fold], query: str | None
    ) -> MemoryVersion | None:
        """Return the version that is merged from segments; None if nothing was read of them.

        Args:
            fold: the fold after the merge.
            parts: the segments' folds.
            query: what the next round looks for.
        """
        progress, memory, source = fold["progress"], memory_of(fold), fold["source"]
        ids = _read_versions(parts)
        if not ids:  # the deadline came before the first chunk
            return None
        return MemoryVersion(
            id=merge_id(ids, self.fingerprint),
            parent=self.root,
            root=self.root,
            text=memory.text,
            tokens=self._reading.tokenizer.count(memory.text),
            step=progress["step"],
            question=self.question,
            source=source["digest"],
            source_name=source["name"],
            start=0,
            end=progress["position"],
            length=source["length"],
            fingerprint=self.fingerprint,
            evidence=memory.evidence,
            unsupported=memory.unsupported,
            dropped=memory.dropped,
            cut=progress["cut"],
            merged=ids,
            skipped=tuple((start, end) for start, end in progress["skipped"]),
            query=query,
            sought=_sought(fold["scope"]),
        )


def version_of(fold: Fold) -> MemoryVersion | None:
    """Return the version of a fold from what a checkpoint has of it; None if it has not."""
    made = fold["layers"].get(VERSIONS, {}).get("made")
    if made is None or made["id"] != fold["progress"]["version"]:
        return None
    try:
        return MemoryVersion.from_stub({**_fields_of(fold), **made}, memory_of(fold))
    except BadRecordError:  # of another release
        return None


async def aversions_in(checkpointer: BaseCheckpointSaver[Any]) -> list[MemoryVersion]:
    """Return the versions that the checkpoints of readings have, for `MemoryBank.check`.

    Every checkpoint of every thread is examined.
    """
    found: dict[str, MemoryVersion] = {}

    def keep(saved: CheckpointTuple) -> None:
        values = saved.checkpoint["channel_values"]
        tasks: dict[str, dict[str, Any]] = {}  # what was written after the checkpoint
        for task, channel, value in saved.pending_writes or ():
            tasks.setdefault(task, dict(values))[channel] = value
        for state in (values, *tasks.values()):
            folds = state.get("folds")  # of segments; a state of another graph may have others
            for fold in (state, *(folds.values() if isinstance(folds, dict) else ())):
                has = isinstance(fold, dict) and fold.keys() >= _HAS
                version = version_of(cast("Fold", fold)) if has else None
                # An edit of the state has the id of the version that it edits.
                if version is not None and not (version.edited and version.id in found):
                    found[version.id] = version

    await see_checkpoints(checkpointer, keep)
    return [*found.values()]


def versions_in(checkpointer: BaseCheckpointSaver[Any]) -> list[MemoryVersion]:
    """Return what `aversions_in` does, from synchronous code."""
    return wait_for(aversions_in(checkpointer))


def _fingerprint(reading: Reading, scope: Scope) -> str:
    """The fingerprint of a reading; a first segment is read as the beginning of the document is."""
    known = _from(reading.fingerprint, scope["start"])
    if is_segmented(scope):
        config = reading.config
        known = make_fingerprint(known, "segments", config.segments, "rounds", config.rounds)
    elif scope["query"] is not None:
        known = make_fingerprint(known, "query", scope["query"])
    return known


def _from(fingerprint: str, start: int) -> str:
    return make_fingerprint(fingerprint, "from", start) if start else fingerprint


def _sought(scope: Scope) -> str | None:
    """Return what the last round of a document in segments looked for, if not the question."""
    return scope["query"] if is_segmented(scope) else None


def _fields_of(fold: Fold) -> dict[str, Any]:
    """The fields of a version that its fold has."""
    source = fold["source"]
    return {
        "question": fold["question"],
        "source": source["digest"],
        "source_name": source["name"],
        "length": source["length"],
    }


def _read_versions(parts: Sequence[Fold]) -> tuple[str, ...]:
    """The last versions of those segments of which anything was read."""
    read = [part["progress"] for part in parts if part["progress"]["step"]]
    return tuple(progress["version"] for progress in read if progress["version"])


def _parts_of(chunk: Chunk, recalled: Sequence[Recalled]) -> tuple[tuple[str, str], ...]:
    """The documents that a chunk of joined ones, and passages shown with it, are of."""
    spans = spans_of(recalled)
    spans += [(chunk.start, chunk.end)] if chunk.text else []
    return tuple(
        dict.fromkeys(row for span in spans for row in identify_parts(chunk.source, *span))
    )
