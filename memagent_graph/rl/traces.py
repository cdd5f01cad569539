"""The records of rollouts: what they are, how they are written, and rollouts assembled from them.

A reading is a rollout of K+1 independent conversations: K updates and one answer. Their records are
written one by one, and may be spread over several files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field, fields
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_ROUNDING = 1e-3
"""Highest log-probability that counts as rounded from 0, mostly in bfloat16."""


@dataclass(frozen=True, slots=True)
class _Record:
    def plain(self) -> dict[str, object]:
        """Return the record as plain values, for a sink."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"kind": _kind(type(self)), **values}

    def _check_types(self, kind: type, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                message = f"{name} must be of type {kind.__name__}, not {value!r}."
                raise TraceError(message)


@dataclass(frozen=True, slots=True)
class Conversation(_Record):
    """A prompt and its completion, in the engine's own tokens.

    Attributes:
        sample: id of the question.
        group: id of the group; rollouts of the same group are compared with each other.
        rollout: id of the rollout.
        step: number of the conversation in its rollout, counted from 0 in the order in which
            conversations ended.
        final: whether it is the answer rather than an update or a merge.
        prompt_ids: token ids of the prompt, including the chat template's; not empty.
        completion_ids: token ids of the completion, including the one that ended it; not empty.
        logprobs: natural logarithm of each completion token's probability under the model, at
            temperature 1 and before top-p and the like, `[completion tokens]`.
        policy: version of the weights that generated it.
        sampling: temperature, top_p and other sampling parameters.
        tokenizer: `fingerprint` of the model's tokenizer.
        start: first code point of the chunk; None if no chunk was read, as for an answer or a
            merge.
        end: one past the chunk's last code point.
        changed: whether the chunk changed the memory; None if no chunk was read.
        finish_reason: why the completion ended, in the engine's words, if known.
        segment: first code point of the segment; None without segments, for merges, and for
            chunks read after them.

    Raises:
        TraceError: A field is invalid, or the number of log-probabilities is not that of the
            completion's tokens.
    """

    sample: str
    group: str
    rollout: str
    step: int
    final: bool
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy: int
    sampling: Mapping[str, float | int | None]
    tokenizer: str
    start: int | None = None
    end: int | None = None
    changed: bool | None = None
    finish_reason: str | None = None
    segment: int | None = None

    def __post_init__(self) -> None:
        self._check_types(str, "sample", "group", "rollout", "tokenizer")
        self._check_types(int, "step", "policy")
        self._check_types(bool, "final")
        for name in ("prompt_ids", "completion_ids", "logprobs"):  # JSON only has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("prompt_ids", "completion_ids"):
            _check_ids(name, getattr(self, name))
        if len(self.logprobs) != len(self.completion_ids):
            message = (
                f"There are {len(self.logprobs)} log-probabilities for "
                f"{len(self.completion_ids)} completion tokens: give each token one."
            )
            raise TraceError(message)
        if not set(map(type, self.logprobs)) <= {float, int}:
            raise TraceError("logprobs must be numbers.")
        if not all(map(isfinite, self.logprobs)) or max(self.logprobs) > _ROUNDING:
            raise TraceError("logprobs must be finite numbers of at most 0.")
        if self.step < 0:
            message = f"step must be at least 0, not {self.step}."
            raise TraceError(message)


@dataclass(frozen=True, slots=True)
class End(_Record):
    """The end of a rollout; without it, a rollout is incomplete.

    `conversations` is their number, and `reward` None if not known yet.
    """

    rollout: str
    conversations: int
    answer: str
    reward: float | None = None

    def __post_init__(self) -> None:
        self._check_types(str, "rollout", "answer")
        self._check_types(int, "conversations")
        if self.reward is not None:
            _check_reward(self.rollout, self.reward)


@dataclass(frozen=True, slots=True)
class Feedback(_Record):
    """A reward given later; the last one of a rollout counts."""

    rollout: str
    reward: float

    def __post_init__(self) -> None:
        self._check_types(str, "rollout")
        _check_reward(self.rollout, self.reward)


@dataclass(frozen=True, slots=True)
class RecordedCall(_Record):
    """A call of the model, also one that failed or whose reply was refused; it trains nothing.

    The `prompt` has the messages as `invoke` of a chat model takes them, without pictures.
    Without a `reply`, `error` says why there is none.
    """

    rollout: str
    prompt: Sequence[Mapping[str, Any]]
    reply: str | None
    error: str | None
    usage: Mapping[str, Any] | None
    seconds: float
    policy: int
    sampling: Mapping[str, float | int | None]

    def __post_init__(self) -> None:
        self._check_types(str, "rollout")


Record: TypeAlias = "Conversation | End | Feedback | RecordedCall"


def _check_ids(name: str, ids: tuple[int, ...]) -> None:
    if not ids:
        message = f"{name} is empty: a conversation has a prompt and a completion."
        raise TraceError(message)
    if set(map(type, ids)) != {int} or min(ids) < 0:
        message = f"{name} must be token ids, whole numbers of at least 0."
        raise TraceError(message)


def _check_reward(rollout: str, reward: float) -> None:
    if type(reward) not in {int, float} or not isfinite(reward):
        message = f"The reward of rollout {rollout!r} is {reward!r}: give a finite number."
        raise TraceError(message)


def fingerprint(tokenizer: object) -> str:
    """Return a digest of a vocabulary: with equal fingerprints, token ids mean the same.

    Args:
        tokenizer: a tokenizer of `transformers` or `tokenizers`, or the `tokenizer` of a reader
            or chat model.

    Raises:
        TraceError: It does not report its vocabulary.
    """
    known = tokenizer
    if not hasattr(known, "get_vocab"):
        known = getattr(tokenizer, "backend", None)
    if not hasattr(known, "get_vocab"):
        message = (
            f"{type(tokenizer).__name__} does not report its vocabulary: give the model's own "
            "tokenizer, of the transformers or the tokenizers library."
        )
        raise TraceError(message)
    vocabulary = sorted(known.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return sha256(repr(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Sink(Protocol):
    """Takes records from any thread."""

    def write(self, record: Record) -> None:
        """Keep one record."""


class ListSink:
    """Keeps `records` in memory until they are taken, for training in the same process."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep one record."""
        self.records.append(record)

    def take(self) -> list[Record]:
        """Return the records since the last call; `join` makes rollouts of them."""
        taken = self.records[:]
        del self.records[: len(taken)]  # others may have written meanwhile
        return taken


class JSONLinesSink:
    """Appends records to a file, one per line; several processes may do so at once.

    Each record is one write, so that other processes find whole lines, except perhaps the last.
    A truncated line of a killed process is ended before the next is written.

    Args:
        path: the file, created if missing.

    Raises:
        OSError: The file cannot be written; also raised by `write`, if the disk is full.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: Record) -> None:
        """Append one record."""
        line = json.dumps(record.plain(), separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(self._file, line) < len(line):
            message = f"Only part of a record could be written to {self._path}: free disk space."
            raise OSError(message)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A reading from its first chunk to its answer.

    Attributes:
        rollout: its id.
        group: id of the group; rollouts of the same group are compared with each other.
        sample: id of the question.
        conversations: the conversations, in the order of their steps; the last is the answer. With
            segments, each segment's are together, then those of the merge.
        answer: its answer.
        reward: its reward; None if not known yet.
        policy: version of the weights that it began with.
    """

    rollout: str
    group: str
    sample: str
    conversations: tuple[Conversation, ...]
    answer: str
    reward: float | None
    policy: int

    @property
    def tokens(self) -> int:
        """Number of completion tokens of all conversations."""
        return sum(len(one.completion_ids) for one in self.conversations)

    @property
    def memory_tokens(self) -> int:
        """Number of completion tokens of the last update; 0 if there was none."""
        updates = [one for one in self.conversations if not one.final]
        return len(updates[-1].completion_ids) if updates else 0


@dataclass(frozen=True, slots=True)
class LoadedTraces:
    """Complete rollouts, as they ended; what was skipped, counted by reason; and all calls."""

    rollouts: list[Rollout] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    calls: list[RecordedCall] = field(default_factory=list)


def load(paths: str | Path | Iterable[str | Path]) -> LoadedTraces:
    """Load recorded rollouts.

    Args:
        paths: one or several files, or folders of JSON lines, as written by `JSONLinesSink`.

    Raises:
        TraceError: There is no such file, or no traces in it.
    """
    skipped: Counter[str] = Counter()
    given = [paths] if isinstance(paths, str | Path) else paths
    files = [file for path in given for file in _files(Path(path))]
    found = join(one for file in files for one in _parse(file, skipped))
    return LoadedTraces(found.rollouts, found.skipped + skipped, found.calls)


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not found:
        message = f"There are no traces in {path}: name a .jsonl file, or a folder of them."
        raise TraceError(message)
    return found


def _parse(file: Path, skipped: Counter[str]) -> Iterator[Record]:
    """The valid records of a file; others are counted in `skipped`."""
    with file.open("rb") as lines:
        for line in filter(bytes.strip, lines):
            try:
                item = json.loads(line)
            except ValueError:
                skipped["torn record"] += 1
                continue
            if not isinstance(item, dict) or (kind := _KINDS.get(str(item.get("kind")))) is None:
                skipped["record of an unknown kind"] += 1
                continue
            values = {one.name: item[one.name] for one in fields(kind) if one.name in item}
            try:
                yield kind(**values)
            except (TypeError, ValueError):
                skipped[f"invalid {_kind(kind)}"] += 1


def _kind(record: type[_Record]) -> str:
    return record.__name__.removeprefix("Recorded").lower()


_KINDS: dict[str, type[Record]] = {
    _kind(kind): kind for kind in (Conversation, End, Feedback, RecordedCall)
}


def join(records: Iterable[Record]) -> LoadedTraces:
    """Assemble rollouts from records; incomplete ones are skipped and counted.

    Args:
        records: the records, in the order of their writing; of two for the same thing, the later
            counts.
    """
    skipped: Counter[str] = Counter()
    conversations: dict[str, dict[int, Conversation]] = {}
    ends: dict[str, End] = {}
    rewards: dict[str, float] = {}
    calls: list[RecordedCall] = []
    for record in records:
        if isinstance(record, RecordedCall):
            calls.append(record)
        elif isinstance(record, Conversation):
            known = conversations.setdefault(record.rollout, {})
            skipped["conversation recorded twice"] += record.step in known
            known[record.step] = record
        elif isinstance(record, End):
            skipped["end recorded twice"] += record.rollout in ends
            ends[record.rollout] = record
        else:
            rewards[record.rollout] = record.reward
    skipped["feedback on a rollout that is not there"] += len(rewards.keys() - conversations.keys())
    skipped["rollout without an end"] += len(conversations.keys() - ends.keys())
    rollouts = []
    for end in ends.values():
        known = conversations.get(end.rollout, {})
        # Segments are read concurrently, so the order in which conversations end has no meaning.
        found = sorted((known[step] for step in range(end.conversations) if step in known), key=_at)
        if not end.conversations:
            skipped["rollout recorded without a tokenizer"] += 1
        elif not found or len(found) < end.conversations:
            skipped["rollout with conversations missing"] += 1
        elif not _fit_together(found):
            skipped["rollout whose conversations do not fit together"] += 1
        else:
            rollout = Rollout(
                rollout=end.rollout,
                group=found[0].group,
                sample=found[0].sample,
                conversations=tuple(found),
                answer=end.answer,
                reward=rewards.get(end.rollout, end.reward),
                policy=min(one.policy for one in found),
            )
            rollouts.append(rollout)
    return LoadedTraces(rollouts, +skipped, calls)


def _at(one: Conversation) -> tuple[bool, bool, int, int]:
    return one.final, one.segment is None, one.segment or 0, one.step


def _fit_together(found: Sequence[Conversation]) -> bool:
    """Whether only the last is an answer, and all have the same question and vocabulary."""
    kinds = {(one.sample, one.group, one.tokenizer) for one in found}
    return len(kinds) == 1 and found[-1].final and not any(one.final for one in found[:-1])
