"""Changes of a user's memory that wait for approval.

A fold that needs approval stores a proposal: how it would change the accepted memory, and the
messages that it read. It continues the accepted memory, never another proposal. So what is refused
cannot be in what is proposed later, and a refusal takes nothing from it. Accepting applies the
changes to the memory as it is then.

| namespace, below the user's | key | value |
|---|---|---|
| proposals | the proposal's id | `changes`, `version`, `said`: see `Proposal` |
"""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.base import PutOp

from memagent_graph.conversation.built_in import Remark, read_remarks, write_remarks
from memagent_graph.conversation.episodes import EpisodePuts, Episodes, KeptMessage, Page
from memagent_graph.conversation.messages import USER
from memagent_graph.conversation.profile import EMPTY
from memagent_graph.conversation.user_memory import CONVERSATION, MemoryChange, put_change
from memagent_graph.errors import (
    BadRecordError,
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
)
from memagent_graph.evidence.places import Memory, with_text
from memagent_graph.evidence.statements import drop_statements, statements
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.items import label
from memagent_graph.memory.version import MemoryVersion, edit_id, edit_version, end_gone
from memagent_graph.text.terms import specific_terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from memagent_graph.conversation.messages import Line
    from memagent_graph.conversation.user_memory import UserMemory
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place

    Approve = Callable[["Proposal"], "Verdict | Awaitable[Verdict]"]
    Verdict = bool | Collection[str] | None

_counter = EstimatingTokenizer()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of one statement, or of several that only change together.

    Attributes:
        id: its id.
        removed: statements that it removes; none if it only adds.
        added: statements that it adds; none if it only removes.
        messages: ids of the messages that it comes from.
        place: the statement after which it adds; None for the beginning.
    """

    id: str
    removed: tuple[Remark, ...]
    added: tuple[Remark, ...]
    messages: tuple[str, ...]
    place: Remark | None

    def __str__(self) -> str:
        """Return the lines of a diff."""
        lines = [f"{mark} {fact.day}".rstrip() + f" {fact.text}" for mark, fact in self._marked]
        return "\n".join(lines)

    @property
    def _marked(self) -> list[tuple[str, Remark]]:
        return [("-", fact) for fact in self.removed] + [("+", fact) for fact in self.added]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The changes of a user's memory that one fold proposes.

    Attributes:
        id: its id.
        at: time of the fold, ISO 8601, UTC.
        thread: id of the thread whose messages were folded.
        messages: ids of those messages.
        model: name of the model that folded them.
        changes: changes that are not decided yet.
        version: the memory after all changes, as the fold made it.
        base: id of the version that the fold continued, "" for none; None if messages or statements
            were taken out of the proposal since.
        said: the messages, to be kept word for word when it is accepted.
        accepted: whether some of its changes were accepted.
    """

    id: str
    at: str
    thread: str
    messages: tuple[str, ...]
    model: str
    changes: tuple[ProposedChange, ...]
    version: MemoryVersion
    base: str | None
    said: tuple[KeptMessage, ...] = ()
    accepted: bool = False

    def __str__(self) -> str:
        """Return the changes as lines of a diff."""
        return "\n".join(map(str, self.changes))

    def to_record(self) -> Value:
        """Return plain values for a store."""
        changes = [
            {
                "id": one.id,
                "removed": [[*fact] for fact in one.removed],
                "added": [[*fact] for fact in one.added],
                "messages": [*one.messages],
                "place": None if one.place is None else [*one.place],
            }
            for one in self.changes
        ]
        return {
            "at": self.at,
            "thread": self.thread,
            "messages": [*self.messages],
            "model": self.model,
            "changes": changes,
            "version": self.version.to_record(),
            "base": self.base,
            "said": [asdict(one) for one in self.said],
            "accepted": self.accepted,
        }

    @classmethod
    def from_record(cls, record: object, key: str) -> Proposal:
        """Return the proposal of a record.

        Raises:
            BadRecordError: The record is not a proposal.
        """
        try:
            values = dict(record)  # type: ignore[call-overload]
            changes = tuple(
                ProposedChange(
                    str(row["id"]),
                    tuple(Remark(*fact) for fact in row["removed"]),
                    tuple(Remark(*fact) for fact in row["added"]),
                    tuple(row["messages"]),
                    None if row["place"] is None else Remark(*row["place"]),
                )
                for row in values.pop("changes")
            )
            version = MemoryVersion.from_record(values.pop("version"))
            said = tuple(KeptMessage(**row) for row in values.pop("said"))
            messages = tuple(values.pop("messages"))
            return cls(
                id=key, changes=changes, version=version, said=said, messages=messages, **values
            )
        except (KeyError, TypeError, ValueError) as error:
            message = f"The proposal stored under {key!r} cannot be read: {error!r}"
            raise BadRecordError(message, key=key) from error

    def without_messages(self, ids: Collection[str], *, shared: bool) -> Proposal | None:
        """Return the proposal without what comes from some messages; None if nothing is left.

        Args:
            ids: ids of messages of its thread.
            shared: whether to take out changes that come from other messages as well.
        """
        if set(ids).isdisjoint(self.messages):
            return self
        changes = [
            one
            for one in self.changes
            if not one.messages
            or not (set(one.messages) & {*ids} if shared else set(one.messages) <= {*ids})
        ]
        said = [one for one in self.said if one.id not in ids]
        left = [key for key in self.messages if key not in ids]
        if not changes or not left:
            return None
        return replace(self.restrict(changes, said), messages=tuple(left))

    def without_subjects(self, subjects: Sequence[frozenset[str]]) -> Proposal | None:
        """Return the proposal without statements that have all words of one of the subjects.

        What it removes from the memory, it still removes. None if nothing is left.
        """
        changes = []
        for one in self.changes:
            added = tuple(f._replace(text=_without(f.text, subjects)) for f in one.added)
            added = tuple(fact for fact in added if fact.text)
            if added or one.removed:
                changes.append(replace(one, added=added))
        said = [replace(one, text=_without(one.text, subjects)) for one in self.said]
        if changes == [*self.changes] and said == [*self.said]:
            return self
        return self.restrict(changes, [one for one in said if one.text]) if changes else None

    def rebase(self, accepted: Sequence[ProposedChange]) -> Proposal:
        """Return the proposal for a memory in which other changes were accepted.

        It removes the statements that took the place of those that it would have removed.
        """
        instead = {
            fact: max(one.added, key=partial(_count_shared, fact))
            for one in accepted
            for fact in one.removed
            if one.added
        }
        changes = [
            replace(one, removed=tuple(instead.get(fact, fact) for fact in one.removed))
            for one in self.changes
        ]
        return self if changes == [*self.changes] else replace(self, changes=tuple(changes))

    def restrict(self, changes: Sequence[ProposedChange], said: Sequence[KeptMessage]) -> Proposal:
        """Return the proposal with fewer changes and messages, and no text of the others."""
        texts = [fact.text for one in changes for fact in one.added]
        places: dict[Remark | None, Remark | None] = {
            fact: one.place for one in self.changes for fact in one.added if fact.text not in texts
        }

        def place(one: ProposedChange) -> Remark | None:
            found = one.place
            while found in places:
                found = places[found]
            return found

        changes = [replace(one, place=place(one)) for one in changes]
        evidence = self.version.memory.evidence
        version = replace(
            self.version,
            memory=Memory("", tuple(e for e in evidence if any(e.text in t for t in texts))),
            told=tuple(one for one in self.version.told if one.line in texts),
        )
        return replace(self, changes=tuple(changes), said=tuple(said), version=version, base=None)


def _count_shared(one: Remark, other: Remark) -> int:
    """Return how many words two statements share."""
    return len({*specific_terms(one.text)} & {*specific_terms(other.text)})


def _without(text: str, subjects: Sequence[frozenset[str]]) -> str:
    for subject in subjects:
        text, _ = drop_statements(text, subject.issubset)
    return text


def compose(
    version: MemoryVersion,
    head: MemoryVersion | None,
    *,
    messages: Sequence[str],
    said: Sequence[KeptMessage],
    starts: Sequence[Line],
    model: str,
) -> Proposal | None:
    """Return the proposal of a fold; None if it would not change the memory.

    Args:
        version: the version that the fold made.
        head: the accepted version that it continues.
        messages: ids of the messages that were folded.
        said: the messages as they may be kept.
        starts: where each message begins in the folded text.
        model: name of the model.
    """
    thread = version.thread or ""
    key = label("\0".join([version.id, thread, *messages]))
    changes = []
    for number, (removed, added, place) in enumerate(
        _compare("" if head is None else head.text, version.text)
    ):
        sources = [_source(fact, version, starts) or _alike(fact, said) for fact in added]
        ids = (*dict.fromkeys(chain.from_iterable(ids or messages for ids in sources)),)
        changes.append(ProposedChange(f"{key[:8]}-{number + 1}", removed, added, ids, place))
    if not changes:
        return None
    base = "" if head is None else head.id
    at = datetime.now(UTC).isoformat()
    return Proposal(
        key, at, thread, tuple(messages), model, tuple(changes), version, base, tuple(said)
    )


def _source(fact: Remark, version: MemoryVersion, starts: Sequence[Line]) -> list[str]:
    """The ids of the messages in which the evidence for a statement is."""
    return [
        max(starts, key=lambda one: (one.start <= item.start, one.start)).message
        for item in version.memory.evidence
        if starts and (item.text in fact.text or fact.text in item.text)
    ]


def _alike(fact: Remark, said: Sequence[KeptMessage]) -> list[str]:
    """The ids of the messages with most of a statement's words, if that is half of them."""
    own = {*specific_terms(fact.text)}
    shares = {one.id: len(own & {*specific_terms(one.text)}) for one in said}
    most = max(shares.values(), default=0)
    return [key for key, share in shares.items() if share == most and 2 * share >= len(own) > 0]


def _compare(
    before: str, after: str
) -> list[tuple[tuple[Remark, ...], tuple[Remark, ...], Remark | None]]:
    """Return removed and added statements, change by change, and the statement before them."""
    lines = _has_lines(before, after)
    old, new = _units(before, lines=lines), _units(after, lines=lines)
    found = []
    for what, start, end, first, last in SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if what == "equal":
            continue
        # A statement that only moved stays where it is, until a whole proposal is accepted.
        removed = [fact for fact in old[start:end] if fact not in new]
        added = [fact for fact in new[first:last] if fact not in old]
        if removed and added and len(removed) != len(added):
            found.append((tuple(removed), tuple(added), new[first - 1] if first else None))
            continue
        for at in range(max(len(removed), len(added))):
            above = min(first + at, last)
            place = new[above - 1] if above else None
            found.append((tuple(removed[at : at + 1]), tuple(added[at : at + 1]), place))
    return found


def _has_lines(*texts: str) -> bool:
    """Whether texts are notes, one a line or with their days, and no sentences of one paragraph."""
    return any("\n" in text.strip() or text[:10].replace("-", "").isdigit() for text in texts)


def _units(text: str, *, lines: bool) -> list[Remark]:
    """The statements of a memory: its lines, or the sentences of one that has a single line."""
    facts = [fact for fact in read_remarks(text) if fact.text != EMPTY]
    if lines:
        return facts
    return [fact._replace(text=one.text) for fact in facts for one in statements(fact.text)]


def _apply(text: str, changes: Sequence[ProposedChange], *, profile: bool) -> str:
    """The memory after some changes, which may have been proposed for an earlier text."""
    lines = _has_lines(text, *(fact.text for change in changes for fact in change.added))
    units = _units(text, lines=lines)
    for change in changes:
        there = [at for at, unit in enumerate(units) if unit in change.removed]
        at = len(units)
        if there:
            at = there[0]
        elif change.place is None:
            at = 0
        elif change.place in units:
            at = units.index(change.place) + 1
        before = [unit for unit in units[:at] if unit not in change.removed]
        behind = [unit for unit in units[at:] if unit not in change.removed]
        added = [fact for fact in change.added if fact not in (*before, *behind)]
        units = [*before, *added, *behind]
        lines |= bool(added) and (profile or any(fact.day for fact in added))
    dated = all(not unit.day and unit.speaker == USER for unit in units)
    if not lines and dated and not profile:
        return " ".join(unit.text for unit in units)
    return write_remarks(units) or (EMPTY if profile else "")


async def list_proposals(memory: UserMemory) -> list[Proposal]:
    """Return what waits for approval, oldest first; for a bad record, a warning is logged."""
    found: list[Proposal] = []
    records = memory.bank.records
    async for item in records.scan(records.proposals):
        try:
            if isinstance(item, BadRecordError):
                raise item
            found.append(Proposal.from_record(item.value, item.key))
        except BadRecordError as error:
            _log.warning("%s It is skipped: see `memagent memory check --user`.", error)
    return sorted(found, key=lambda one: (one.at, one.id))


async def store_proposal(
    memory: UserMemory,
    proposal: Proposal | None,
    *,
    head: MemoryVersion | None,
    mark: Value | BadRecordError | None,
    step: EpisodePuts,
) -> bool:
    """Store a proposal with the mark of its messages, unless something changed meanwhile.

    Args:
        memory: the user's memory.
        proposal: the proposal; None to store the mark alone.
        head: the accepted version.
        mark: the thread's mark as it was, which must still be there.
        step: the new mark, and changes of other proposals and of kept messages.
    """
    records = memory.bank.records
    if proposal is not None:
        place = (records.proposals, proposal.id)
        puts = [
            records.put(*place, proposal.to_record()),
            put_change(records, _entry(proposal, "proposed", CONVERSATION)),
        ]
        step = EpisodePuts([*step.puts, *puts], {**step.given, place: None})
    return await memory.commit(step, head, mark)


async def propose_edit(memory: UserMemory, head: MemoryVersion, text: str, *, by: str) -> None:
    """Propose another text in the place of the accepted one.

    Raises:
        MemoryConflictError: The memory changed meanwhile.
    """
    proposal = compose(edit_version(head, text), head, messages=(), said=(), starts=(), model="")
    if proposal is None:
        return
    place = (memory.bank.records.proposals, proposal.id)
    puts = [
        memory.bank.records.put(*place, proposal.to_record()),
        put_change(memory.bank.records, _entry(proposal, "proposed", by)),
    ]
    if not await memory.bank.records.commit(puts, memory.expect(head)):
        raise _conflict(memory.user)


async def revise(
    memory: UserMemory,
    thread: str,
    edited: Collection[str],
    subjects: Sequence[frozenset[str]],
    step: EpisodePuts,
) -> EpisodePuts:
    """Add to a fold's step what it changes in waiting proposals.

    Args:
        memory: the user's memory.
        thread: id of the thread.
        edited: ids of messages that say something else now: what they said before is withdrawn.
        subjects: what the user asks to forget.
        step: the step.
    """
    if not edited and not subjects:
        return step

    def change(one: Proposal) -> Proposal | None:
        now = one.without_messages(edited, shared=False) if one.thread == thread else one
        return now and now.without_subjects(subjects)

    more = await _revise(memory, change)
    return EpisodePuts([*step.puts, *more.puts], {**step.given, **more.given})


async def _revise(
    memory: UserMemory, change: Callable[[Proposal], Proposal | None], besides: str = ""
) -> EpisodePuts:
    """Return the step that changes all waiting proposals but the one with the id `besides`."""
    records, puts = memory.bank.records, list[PutOp]()
    given: dict[Place, Value | None] = {}
    for proposal in await list_proposals(memory):
        now = proposal if proposal.id == besides else change(proposal)
        if now is not proposal:
            place = (records.proposals, proposal.id)
            puts.append(records.put(*place, None if now is None else now.to_record()))
            given[place] = proposal.to_record()
    return EpisodePuts(puts, given)


async def withdraw_proposed(
    memory: UserMemory, change: Callable[[Proposal], Proposal | None]
) -> None:
    """Change the waiting proposals, each if `change` returns another, or None to delete it.

    Raises:
        MemoryConflictError: They kept changing.
    """
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        step = await _revise(memory, change)
        if not step.puts or await memory.bank.records.commit(step.puts, step.given):
            return
    raise _conflict(memory.user)


def ids_of(chosen: Sequence[str | Proposal | ProposedChange]) -> list[str]:
    """Return the ids of proposals and changes.

    Raises:
        ConfigurationError: There are none.
    """
    if not chosen:
        message = "Name what to decide: proposals, or single changes of them."
        raise ConfigurationError(message)
    return [one if isinstance(one, str) else one.id for one in chosen]


class Decision(NamedTuple):
    """Ids of proposals, or of single changes, that are accepted and refused."""

    accept: frozenset[str]
    refuse: frozenset[str]

    def parts(self, proposals: Sequence[Proposal]) -> dict[str, tuple[set[str], set[str]]]:
        """Return the ids of the changes that are accepted and refused, by proposal.

        Raises:
            ConfigurationError: A change is both accepted and refused.
            MemoryNotFoundError: An id is that of nothing that waits.
        """
        found: dict[str, tuple[set[str], set[str]]] = {}
        known: set[str] = set()
        for one in proposals:
            ids = {change.id for change in one.changes}
            known |= {one.id, *ids}
            accept, refuse = (ids if one.id in said else ids & said for said in self)
            if accept & refuse:
                message = f"{min(accept & refuse)} is both accepted and refused: choose one."
                raise ConfigurationError(message)
            if accept or refuse:
                found[one.id] = accept, refuse
        if unknown := sorted((self.accept | self.refuse) - known):
            message = (
                f"{unknown[0]!r} does not wait for approval: it was decided, or forgotten. "
                "`memagent memory proposals --user` lists what waits."
            )
            raise MemoryNotFoundError(message)
        return found


async def decide(
    memory: UserMemory, accept: Collection[str] = (), refuse: Collection[str] = (), *, by: str
) -> None:
    """Accept and refuse proposals, or single changes; all others wait on.

    Args:
        memory: the user's memory.
        accept: ids of proposals or changes to apply to the memory.
        refuse: ids of those to delete; the messages that they come from are not kept either.
        by: who decides, for the log of changes.

    Raises:
        ConfigurationError: A change is both accepted and refused.
        MemoryNotFoundError: One of them does not wait; nothing was decided.
        MemoryConflictError: Others changed the memory meanwhile.
        StoreError: The store failed.
    """
    decision = Decision(frozenset(accept), frozenset(refuse))
    for key, (yes, no) in decision.parts(await list_proposals(memory)).items():
        await _settle(memory, key, yes, no, by)


async def decide_by(memory: UserMemory, proposal: Proposal, verdict: Verdict) -> None:
    """Decide a whole proposal as a function says; arguments as of `decide`."""
    ids = {one.id for one in proposal.changes}
    accept = (ids if verdict else set()) if isinstance(verdict, bool) else {*(verdict or ())}
    refuse = {proposal.id} if not accept else ids - accept
    await decide(memory, accept, refuse, by="approve")


async def _settle(memory: UserMemory, key: str, yes: set[str], no: set[str], by: str) -> None:
    records = memory.bank.records
    place = (records.proposals, key)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (stored,) = await records.values([place])
        if not isinstance(stored, dict):
            break
        proposal = Proposal.from_record(stored, key)
        head = await memory.head()
        accepted = [one for one in proposal.changes if one.id in yes]
        refused = [one for one in proposal.changes if one.id in no]
        kept, left = _part(proposal, accepted, refused)
        step = await _keep(memory, kept)
        others = await _revise(memory, partial(Proposal.rebase, accepted=accepted), besides=key)
        puts = [records.put(*place, None if left is None else left.to_record())]
        puts += [*step.puts, *others.puts]
        if refused:
            puts.append(put_change(records, _entry(proposal, "refused", by)))
        given = {**step.given, **others.given, place: stored}
        step = EpisodePuts(puts, {**given, **memory.expect(head)})
        version = _merge(proposal, head, accepted) if accepted else head
        if version is None or version is head:
            done = await records.commit(step.puts, step.given)
        else:
            change = _entry(proposal, "accepted", by)
            change = replace(change, at=version.created_at, version=version.id)
            given = {name: value for name, value in step.given.items() if name != memory.place}
            done = await memory.advance(version, head, change, EpisodePuts(puts, given))
        if done:
            return
    raise _conflict(memory.user)


def _entry(proposal: Proposal, what: str, by: str) -> MemoryChange:
    return MemoryChange(
        datetime.now(UTC).isoformat(),
        what,  # type: ignore[arg-type]
        by,
        thread=proposal.thread,
        messages=proposal.messages,
        model=proposal.model,
    )


def _part(
    proposal: Proposal, accepted: Sequence[ProposedChange], refused: Sequence[ProposedChange]
) -> tuple[list[KeptMessage], Proposal | None]:
    """Messages that may be kept after a decision, and what still waits; None for nothing."""
    decided = {one.id for one in (*accepted, *refused)}
    waiting = [one for one in proposal.changes if one.id not in decided]
    banned = {key for one in refused for key in one.messages}
    said = [one for one in proposal.said if one.id not in banned]
    if not waiting:
        return (said if accepted or proposal.accepted else []), None
    open_ids = {key for one in waiting for key in one.messages}
    sure = {key for one in accepted for key in one.messages} - open_ids
    kept = [one for one in said if one.id in sure]
    rest = [one for one in said if one.id not in sure]
    left = proposal.restrict(waiting, rest)
    return kept, replace(left, accepted=bool(accepted) or proposal.accepted)


async def _keep(memory: UserMemory, said: Sequence[KeptMessage]) -> EpisodePuts:
    """The step that keeps messages word for word."""
    if not said:
        return EpisodePuts()
    episodes = memory.episodes
    if episodes.off:  # an operator's: the limits are the chatbot's, and hold from its next fold on
        episodes = Episodes(memory.bank.records, sys.maxsize, None)
    return await episodes.keep(said, new={one.id for one in said}, clean=_identity)


def _identity(page: Page) -> Page:
    return page


def _merge(
    proposal: Proposal, head: MemoryVersion | None, accepted: Sequence[ProposedChange]
) -> MemoryVersion | None:
    """The version with the accepted changes; the head if it has them already."""
    version = proposal.version
    whole = len(accepted) == len(proposal.changes) and not proposal.accepted
    if whole and proposal.base == ("" if head is None else head.id):
        return replace(version, created_at=datetime.now(UTC).isoformat())
    before = "" if head is None else head.text
    profile = bool(version.told or (head is not None and head.told))
    text = _apply(before, accepted, profile=profile)
    if head is not None and text == before:
        return head
    now = datetime.now(UTC).isoformat()
    sources = () if head is None else end_gone(head.told, text, now)
    known = {one.line for one in sources if not one.until}
    lines = {*text.splitlines()} - known
    parent = version.root if head is None else head.id
    evidence = (*(() if head is None else head.memory.evidence), *version.memory.evidence)
    memory = replace(version.memory, evidence=tuple(dict.fromkeys(evidence)))
    return replace(
        version,
        id=edit_id(parent, f"{proposal.id}\0{text}", version.fingerprint),
        parent=parent,
        root=version.root if head is None else head.root,
        memory=with_text(text, memory),
        tokens=_counter.count(text),
        told=(
            *sources,
            *(one for one in version.told if one.line in lines and not one.until),
        ),
        created_at=now,
    )


def _conflict(user: str) -> MemoryConflictError:
    message = f"What waits for the approval of {user!r} changed meanwhile: look at it again."
    return MemoryConflictError(message)
