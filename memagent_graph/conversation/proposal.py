"""New memories of users that wait for approval.

A fold that needs approval stores a proposal: the whole memory after it, and the messages that it
read. It continues the accepted memory, never another proposal, so what is refused is in no other
proposal. Once another memory was accepted, its messages have to be folded again, on that one.

| namespace, below the user's | key | value |
|---|---|---|
| proposals | the proposal's id | the fields of a `Proposal`, without `before` |
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from difflib import unified_diff
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from memagent_graph import errors
from memagent_graph.conversation.built_in import read_remarks, write_remarks
from memagent_graph.conversation.episodes import EpisodePuts, KeptMessage, drop_subjects, own_id
from memagent_graph.conversation.profile import EMPTY
from memagent_graph.conversation.user_memory import CONVERSATION, MemoryChange, put_change
from memagent_graph.evidence.statements import drop_statements, statements
from memagent_graph.memory.items import find_versions, label
from memagent_graph.memory.store import Tries
from memagent_graph.memory.version import MemoryVersion, edit_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from memagent_graph.conversation.user_memory import UserMemory, What
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.store import Value

    Verdict = bool | str | None
    Approve = Callable[["Proposal"], Verdict | Awaitable[Verdict]]
    FoldAgain = Callable[["Proposal"], Awaitable["Proposal"]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new memory of a user, as one fold proposes it.

    Attributes:
        id: its id.
        at: time of the first fold of its messages, ISO 8601, UTC.
        thread: id of the thread whose messages were folded.
        messages: ids of those messages; none for an edit by an agent.
        model: name of the model that folded them.
        version: the whole memory after the fold.
        base: id of the accepted version that it continues, "" for none; None if messages were
            taken out since, so that the others have to be folded again.
        said: the messages, to be kept word for word when it is accepted.
        was: what messages that were edited or taken back said before.
        asked: ids of the threads in which a graph asked about it.
        before: the text of `base`; "" if that version is gone.
    """

    id: str
    at: str
    thread: str
    messages: tuple[str, ...]
    model: str
    version: MemoryVersion
    base: str | None
    said: tuple[KeptMessage, ...] = ()
    was: tuple[KeptMessage, ...] = ()
    asked: tuple[str, ...] = ()
    before: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the lines of a diff against the accepted memory that it continues."""
        before, after = self.before.splitlines(), self.version.text.splitlines()
        lines = [*unified_diff(before, after, lineterm="", n=0)][2:]
        return "\n".join(f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@@"))

    @property
    def changes_memory(self) -> bool:
        """Whether it says anything else than the memory that it continues."""
        before, after = (
            [one for one in read_remarks(text) if one.text != EMPTY]
            for text in (self.before, self.version.text)
        )
        return before != after

    def to_record(self) -> Value:
        """Return plain values for a store."""
        plain = {name: getattr(self, name) for name in ("at", "thread", "model", "base")}
        lists = {name: [*getattr(self, name)] for name in _LISTS}
        kept = {name: [asdict(one) for one in getattr(self, name)] for name in _KEPT}
        return {**plain, **lists, **kept, "version": self.version.to_record()}

    @classmethod
    def from_record(cls, record: Value, key: str) -> Proposal:
        """Return the proposal of a record. Raises `BadRecordError` if it is none."""
        try:
            version = MemoryVersion.from_record(record["version"])
            lists = {name: tuple(record[name]) for name in _LISTS}
            kept = {name: tuple(KeptMessage(**one) for one in record[name]) for name in _KEPT}
            return cls(**{**record, **lists, **kept, "id": key, "version": version})
        except (KeyError, TypeError, ValueError) as error:
            message = f"The proposal stored under {key!r} cannot be read: {error!r}"
            raise errors.BadRecordError(message, key=key) from error

    def without(
        self, messages: Collection[str] = (), subjects: Sequence[frozenset[str]] = ()
    ) -> Proposal | None:
        """Return what is left without messages and statements about subjects; None if nothing is.

        Without some of its messages, it has no text until the others are folded again.
        """
        gone = {own_id(key, self.thread) for key in messages}
        said, was = (
            tuple(
                replace(one, text=text)
                for one in kept
                if one.own_id not in gone and (text := _drop(one.text, subjects))
            )
            for kept in (self.said, self.was)
        )
        left = tuple(key for key in self.messages if own_id(key, self.thread) not in gone)
        same = left == self.messages
        text, base = (_drop(self.version.text, subjects), self.base) if same else ("", None)
        if (said, was, text, base) == (self.said, self.was, self.version.text, self.base):
            return self
        version, lines = _with_text(self.version, text), {*text.splitlines()}
        version = replace(version, told=tuple(o for o in version.told if o.line in lines))
        now = replace(self, messages=left, version=version, base=base, said=said, was=was)
        return now if (said or was if base is None else now.changes_memory) else None

    def edit_again(self, head: MemoryVersion | None) -> MemoryVersion:
        """Return the version in which another memory loses the statements that this edit removes.

        Raises `MemoryConflictError` if the edit adds a statement as well, or there is no memory.
        """
        before, after = (
            {one.text for remark in read_remarks(text) for one in statements(remark.text)}
            for text in (self.before, self.version.text)
        )
        if head is None or after - before:
            message = f"{self.id} is an edit of an earlier memory: refuse it, and edit this one."
            raise errors.MemoryConflictError(message)
        gone = before - after
        facts = [
            one._replace(text=drop_statements(one.text, lambda _: True, gone.__contains__)[0])
            for one in read_remarks(head.text)
        ]
        return edit_version(head, write_remarks([one for one in facts if one.text]))


_LISTS, _KEPT = ("messages", "asked"), ("said", "was")


def _drop(text: str, subjects: Sequence[frozenset[str]]) -> str:
    left = drop_subjects(text, subjects)
    return left if left == text else write_remarks([*read_remarks(left)])


def _with_text(version: MemoryVersion, text: str) -> MemoryVersion:
    """Return the version with another text, in the same place of its chain."""
    edited = edit_version(version, text)
    return replace(edited, parent=version.parent, made_by=version.made_by)


def compose(
    version: MemoryVersion,
    head: MemoryVersion | None,
    said: Sequence[KeptMessage] = (),
    was: Sequence[KeptMessage] = (),
    messages: Sequence[str] = (),
    model: str = "",
) -> Proposal:
    """Return the proposal of a version that continues an accepted one; see `Proposal`."""
    thread, at = version.thread or "", datetime.now(UTC).isoformat()
    key = label("\0".join([version.id, thread, *messages]))
    base, before = ("", "") if head is None else (head.id, head.text)
    kept = tuple(said), tuple(was)
    return Proposal(key, at, thread, (*messages,), model, version, base, *kept, before=before)


async def list_proposals(memory: UserMemory) -> list[Proposal]:
    """Return what waits for approval, oldest first; for a bad record, a warning is logged."""
    found: list[Proposal] = []
    records = memory.bank
    async for item in records.scan(records.proposals):
        try:
            if isinstance(item, errors.BadRecordError):
                raise item
            found.append(Proposal.from_record(item.value, item.key))
        except errors.BadRecordError as error:
            _log.warning("%s It is skipped: see `memagent memory check --user`.", error)
    bases = await find_versions(records, [*{one.base for one in found if one.base}])
    texts = {one.id: one.text for one in bases if isinstance(one, MemoryVersion)}
    found = [replace(one, before=texts.get(one.base or "", "")) for one in found]
    return sorted(found, key=lambda one: (one.at, one.id))


async def revise(memory: UserMemory, change: Callable[[Proposal], Proposal | None]) -> EpisodePuts:
    """Return the step that puts what `change` returns in the place of each proposal."""
    values: dict[str, Value | None] = {}
    given: dict[Place, Value | None] = {}
    records = memory.bank
    for one in await list_proposals(memory):
        now = change(one)
        if now is not one:
            given[records.proposals, one.id] = one.to_record()
            values |= {one.id: None} | ({now.id: now.to_record()} if now else {})
    puts = [records.put(records.proposals, key, value) for key, value in values.items()]
    return EpisodePuts(puts, given)


async def change_proposals(
    memory: UserMemory, change: Callable[[Proposal], Proposal | None]
) -> None:
    """Carry out `revise`; raises `MemoryConflictError` if the proposals keep changing."""
    async for _ in Tries(f"What waits for the approval of {memory.user!r}"):
        step = await revise(memory, change)
        if not step.puts or await memory.bank.commit(*step):
            return


async def propose(
    memory: UserMemory,
    proposal: Proposal,
    step: EpisodePuts,
    edited: Collection[str],
    subjects: Sequence[frozenset[str]],
) -> EpisodePuts:
    """Add a proposal to a fold's step, and what it takes out of others.

    `edited` are messages of its thread that say something else now, `subjects` what is forgotten.
    """
    more = await revise(
        memory, lambda one: one.without(edited if one.thread == proposal.thread else (), subjects)
    )
    return step | more | _put_new(memory, proposal, CONVERSATION)


def _put_new(memory: UserMemory, proposal: Proposal, by: str) -> EpisodePuts:
    """Return the step that adds a proposal, which is empty if that changes nothing."""
    records = memory.bank
    put = records.put(records.proposals, proposal.id, proposal.to_record())
    puts = [put, put_change(records, _entry(proposal, "proposed", by))]
    return EpisodePuts(puts if proposal.changes_memory else ())


async def propose_edit(memory: UserMemory, head: MemoryVersion, text: str, by: str) -> None:
    """Propose another text for the accepted one; raises `MemoryConflictError` if that changed."""
    proposal = compose(edit_version(head, text), head)
    step = _put_new(memory, proposal, by)
    if step.puts and not await memory.commit(step, head):
        raise _conflict(memory.user)


class Decision(BaseModel):
    """Ids of proposals to accept and to refuse, and those to accept with another text (`edit`).

    Those that are not named wait on. It is also the reply to the interrupt of an `ApprovalNode`.
    """

    model_config = ConfigDict(extra="forbid")

    accept: list[str] = Field(default_factory=list)
    refuse: list[str] = Field(default_factory=list)
    edit: dict[str, str] = Field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """The ids of all that it names."""
        return [*self.accept, *self.refuse, *self.edit]


async def decide(
    memory: UserMemory, decision: Decision, *, by: str, fold_again: FoldAgain | None = None
) -> None:
    """Carry out a decision.

    Of several that are accepted, one becomes the memory: the edited one, otherwise an edit of an
    agent, otherwise the oldest. The others are folded again on that by `fold_again`, which stores
    the new proposal in the place of the old one, and the result is accepted. Raises as
    `ConversationMemory.aaccept`; without `fold_again`, several cannot be accepted.
    """
    waiting = {one.id: one for one in await list_proposals(memory)}
    ids, edit = decision.ids, decision.edit
    if not ids or len({*ids}) < len(ids) or len(edit) > 1:
        message = "Name each proposal to decide once, and edit one at a time: it is all the memory."
        raise errors.ConfigurationError(message)
    if unknown := [key for key in ids if key not in waiting]:
        message = (
            f"{unknown[0]!r} does not wait for approval: it was decided, forgotten or folded "
            "again. `list_proposals` lists what waits."
        )
        raise errors.MemoryNotFoundError(message)
    taken = [waiting[key] for key in (*edit, *decision.accept)]
    taken.sort(key=lambda one: (one.id not in edit, bool(one.messages), one.at))
    head = await memory.head()
    old = [one for one in taken if one.base != ("" if head is None else head.id)]
    if old or (fold_again is None and len(taken) > 1):
        message = (
            "Only one proposal that continues the present memory can be accepted without a model. "
            "The chatbot folds the messages of the others again at the user's next turn."
        )
        if fold_again:
            ids = [(await fold_again(one)).id for one in old]
            message = f"The memory changed. It was folded again: look at {', '.join(ids)}."
        raise errors.MemoryConflictError(message)
    for key in decision.refuse:
        await _refuse(memory, waiting[key], by)
    for at, one in enumerate(taken):
        now = await fold_again(one) if at and fold_again else one
        await _accept(memory, now, edit.get(one.id), by)


async def _accept(memory: UserMemory, proposal: Proposal, text: str | None, by: str) -> None:
    """Make a proposal the memory, or another text, and keep its messages."""
    records = memory.bank
    version = proposal.version if text is None else _with_text(proposal.version, text)
    change = replace(_entry(proposal, "accepted", by), version=version.id)
    version, place = replace(version, created_at=change.at), (records.proposals, proposal.id)
    async for _ in Tries(f"What waits for the approval of {memory.user!r}"):
        head = await memory.head()
        (stored,) = await records.values([place])
        if stored != proposal.to_record() or proposal.base != ("" if head is None else head.id):
            break
        new = {one.id for one in proposal.said}
        step = await memory.episodes.keep(proposal.said, new=new, clean=str)
        step |= EpisodePuts([records.put(*place, None)], {place: stored})
        if await memory.advance(version, head, change, step):
            return
    raise _conflict(memory.user)


async def _refuse(memory: UserMemory, proposal: Proposal, by: str) -> None:
    records = memory.bank
    place = (records.proposals, proposal.id)
    puts = [records.put(*place, None), put_change(records, _entry(proposal, "refused", by))]
    if not await records.commit(puts, {place: proposal.to_record()}):
        raise _conflict(memory.user)


def _entry(proposal: Proposal, what: What, by: str) -> MemoryChange:
    now, one = datetime.now(UTC).isoformat(), proposal
    return MemoryChange(now, what, by, "", one.thread, one.messages, one.model)


def _conflict(user: str) -> errors.MemoryConflictError:
    message = f"What waits for the approval of {user!r} changed meanwhile: look at it again."
    return errors.MemoryConflictError(message)
