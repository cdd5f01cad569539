"""Fold messages into the next version of a user's memory."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING

from langchain_core.messages import HumanMessage

from memagent_graph import errors
from memagent_graph.conversation.backlog import find_changed
from memagent_graph.conversation.built_in import drop_ended, topics, withdraw
from memagent_graph.conversation.episodes import KeepFilter, drop_subjects
from memagent_graph.conversation.form import split_memory
from memagent_graph.conversation.messages import (
    ConversationSource,
    as_message,
    is_excluded,
    word_for_word,
)
from memagent_graph.conversation.proposal import (
    Decision,
    change_proposals,
    compose,
    decide,
    list_proposals,
    propose,
    revise,
)
from memagent_graph.conversation.reader import NotesReader, compose_question, resolve_keeper
from memagent_graph.conversation.user_memory import CONVERSATION, MemoryChange
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import is_later, statements
from memagent_graph.graph.fold import advance, faults_of, warn_of_faults
from memagent_graph.graph.layers import add_layers
from memagent_graph.graph.reading import Call, Reading, check_window, memory_of, repeat
from memagent_graph.graph.state import begin_fold, document_of, warn_of_left_out, whole_scope
from memagent_graph.memory.store import Tries
from memagent_graph.memory.version import (
    MemoryVersion,
    MessageFold,
    ReadDocument,
    child_id,
    make_fingerprint,
    root_id,
)
from memagent_graph.templates import plural
from memagent_graph.text.chunks import chunks
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.episodes import Branch, EpisodePuts, KeptMessage
    from memagent_graph.conversation.form import NotesForm
    from memagent_graph.conversation.messages import Redact
    from memagent_graph.conversation.proposal import Approve, Proposal
    from memagent_graph.conversation.user_memory import Changed, UserMemory
    from memagent_graph.errors import BadRecordError
    from memagent_graph.graph.state import Fold
    from memagent_graph.memory.store import Value
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike

_ASKED_TWICE = 2
"""Calls of a chunk that was read whole and whose notes had to be written once more."""


async def _read(call: Call, fold: Fold, chunk: Chunk, _: int) -> Fold:
    return (await advance(call, fold, chunk))[0]


async def fold_within(
    reading: Reading, fold: Fold, source: Source, *, config: RunnableConfig | None = None
) -> tuple[Fold, tuple[str, ...]]:
    """Fold a whole conversation into a memory, of which `reading.cut` takes the oldest lines.

    Returns what had to give way as well, in words that quote nothing.
    """
    again = unfinished = lost = 0
    was_cut = fold["progress"]["cut"]

    def cut(text: str, tokens: int, tokenizer: Tokenizer) -> str:
        nonlocal lost
        kept = reading.cut(text, tokens, tokenizer)
        lost += sum(piece not in kept for piece in split_memory(text))
        return kept

    call = Call(replace(reading, cut=cut), config)
    for chunk in chunks(source, **reading.sizes):
        calls, dropped = fold["progress"]["calls"], lost
        faults = faults_of(fold)["asked"]
        fold["progress"]["cut"] = False
        read = partial(_read, call, fold, chunk)
        fold = await repeat(read, reading.config, patient=False)
        asked = fold["progress"]["calls"] - calls - (faults_of(fold)["asked"] - faults)
        again += asked == _ASKED_TWICE and reading.reader.shortens
        unfinished += fold["progress"]["cut"] and lost == dropped
        was_cut |= fold["progress"]["cut"]
    fold["progress"]["cut"] = was_cut
    budget = f"its budget of {reading.config.memory_tokens} tokens"
    warnings = []
    if again:
        warnings.append(
            f"A reply was over {budget}, or was cut off, and the model was asked once more, for a "
            "shorter one."
        )
    if lost:
        lines = plural(lost, "line")
        warnings.append(
            f"The memory was over {budget}: {lines} of it, the oldest, had to go. Raise "
            "memory_tokens, or name a model that keeps to it."
        )
    warnings += warn_of_faults(faults_of(fold)["faulty"], exact=False)
    warnings += warn_of_left_out(fold["progress"], {})
    if unfinished:
        warnings.append(
            "The model's reply was cut off, so that the end of the memory is missing. Raise "
            "memory_tokens, or max_tokens of the model."
        )
    return fold, tuple(warnings)


_LOST = "The newest version of the memory was gone: this one continues what was left."
_log = logging.getLogger(__name__)


class Folding:
    """Folds messages into memories; arguments as for `ConversationMemory`."""

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None,
        config: ReadingConfig,
        tokenizer: TokenizerLike,
        keep: str,
        never: str,
        *,
        redact: Redact,
        form: NotesForm,
        approve: Approve | bool = False,
    ) -> None:
        # Most of what people say is nothing to remember.
        config = config.model_copy(update={"update_gate": True})
        reader = resolve_keeper(
            model,
            config=config,
            tokenizer=tokenizer,
            keep=keep,
            never=never,
            fields=form.fields,
            facts=form.facts,
        )
        self._form = form
        counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
        room = form.make_room(config, reader, counter)
        for budgets in (config, room):
            check_window(reader.identity, budgets, question_tokens=0)
        config = room
        self.reading = add_layers(Reading("conversation", reader, config, counter, cut=form.cut))
        self._question = compose_question(keep, never, form.question)
        self._model = reader.identity.name
        self._approve = approve
        self.kept = KeepFilter(redact, never.strip(), topics(never))
        self._warned: set[str] = set()
        if counter.count(self._question) > config.question_tokens:
            message = (
                f"The instructions in keep and never are too long: with the standing question they "
                f"may have {config.question_tokens} tokens. Shorten them, or raise question_tokens."
            )
            raise errors.ConfigurationError(message)

    async def fold(
        self,
        memory: UserMemory,
        thread: str,
        config: RunnableConfig,
        folding: Sequence[BaseMessage],
        branch: Branch,
    ) -> int:
        """Fold new and edited messages onto the newest version, and return their number.

        Raises as `ConversationMemory.asave`, and if the memory has another form.
        """
        await self.reading.prepare(self.reading.tokenizer.count(self._question))
        redact, replaced = self.kept.redact, branch.replaced
        before: MemoryVersion | None = None
        seen: dict[str, BaseMessage] = {}
        mark: Value | BadRecordError | None = None
        async for _ in Tries(f"The memory of {memory.user!r}"):
            head, was_lost = await memory.find_head()
            marked, mark = mark, await memory.read_mark(thread)
            if (before and not head) or (marked and not mark):
                return 0  # the user was forgotten at this moment
            self._check(head)
            before = head
            changed = await find_changed(memory, thread, folding, redact)
            if not changed and not replaced:
                return 0
            gone = {one.recorded.id for one in changed if one.before} | {r.id for r in replaced}
            was = await _find_kept(memory, thread, gone, proposed=bool(self._approve))
            said = [one.message for one in changed if not is_excluded(one.message)]
            seen = await self._see(said, seen, config)
            new = [*seen.values()]
            version, asked = None, list[frozenset[str]]()
            if new or was:
                version, asked = await self._version(memory, head, new, thread, was, config)
                lost_one = (_LOST,) if was_lost else ()
                version = replace(version, warnings=(*lost_one, *version.warnings))
            kept = word_for_word(new, thread, self.kept)
            kept = [replace(m, text=drop_subjects(m.text, asked)) for m in kept[:-1]] + kept[-1:]
            step = await self._keep(memory, kept, was, changed, asked)
            step = memory.put_said(thread, mark, changed, branch) | step
            ids = tuple(str(message.id) for message in new)
            if version is None:
                done = await memory.commit(step, head)
            elif self._approve:
                told = [one for one in kept if one.text]
                proposal = compose(version, head, told, [*was.values()], ids, self._model)
                step = await propose(memory, proposal, step, gone, asked)
                if done := await memory.commit(step, head):
                    await self._ask(memory, proposal)
            else:
                at, key = version.created_at, version.id
                change = MemoryChange(at, "folded", CONVERSATION, key, thread, ids, self._model)
                done = await memory.advance(version, head, change, step)
                with suppress(errors.StoreError):  # the next reply need not read them, or says so
                    await memory.episodes.read()
            if done:
                break
        return len(new) if version else 0

    async def _keep(
        self,
        memory: UserMemory,
        said: Sequence[KeptMessage],
        was: Mapping[str, KeptMessage],
        changed: Sequence[Changed],
        asked: Sequence[frozenset[str]],
    ) -> EpisodePuts:
        """Return the step that keeps messages word for word, unless that needs approval."""
        left = {one.id for one in said}
        gone = [replace(one, text="") for key, one in was.items() if key not in left]
        return await memory.episodes.keep(
            gone if self._approve else [*said, *gone],
            new={str(one.message.id) for one in changed if not one.before},
            clean=lambda text: drop_subjects(self.kept.drop(text), asked),
        )

    async def _find_times(
        self, memory: UserMemory, new: Sequence[BaseMessage], thread: str
    ) -> dict[str, str]:
        """Return when statements were made, if new ones are older than kept ones of their day."""
        if not self._built_in:
            return {}
        said = word_for_word(new, thread, self.kept)
        first = {one.day: one.at for one in sorted(said, key=lambda one: one.at, reverse=True)}
        kept = [one for one in (await memory.episodes.read()).said if one.day in first]
        if not any(is_later(one.at, first[one.day]) for one in kept):
            return {}
        return {
            statement.text.lstrip("@ "): one.at
            for one in (*kept, *said)
            for statement in statements(one.text)
        }

    @property
    def _built_in(self) -> bool:
        return getattr(self.reading.reader, "quotes", False)

    async def _ask(self, memory: UserMemory, proposal: Proposal) -> None:
        """Let the function decide, if there is one; if it fails, the proposal waits."""
        if not callable(self._approve) or not proposal.changes_memory:
            return
        try:
            verdict = self._approve(proposal)
            if isawaitable(verdict):
                verdict = await verdict
            ids = [proposal.id]
            if isinstance(verdict, str):
                await self.decide(memory, Decision(edit={proposal.id: verdict}), by="approve")
            elif isinstance(verdict, bool):
                decision = Decision(accept=ids) if verdict else Decision(refuse=ids)
                await self.decide(memory, decision, by="approve")
            elif verdict is not None:
                _log.warning("approve must return True, False, a text or None: a proposal waits.")
        except Exception as error:  # noqa: BLE001 - whatever it raises, nothing is lost
            _log.warning("approve failed, and a proposal waits for approval: %s", error)

    async def decide(self, memory: UserMemory, decision: Decision, *, by: str) -> None:
        """Carry out a decision about proposals; see `proposal.decide`.

        Edited texts are redacted, lose what `never` bans, and must be within the budget.
        """
        edit = {key: self.kept.clean(text) for key, text in decision.edit.items()}
        most = self.reading.config.memory_tokens
        if any(self.reading.tokenizer.count(text) > most for text in edit.values()):
            message = f"The text has more than {most} tokens: shorten it, or raise memory_tokens."
            raise errors.ConfigurationError(message)
        fold_again = partial(self._fold_again, memory)
        await decide(
            memory, decision.model_copy(update={"edit": edit}), by=by, fold_again=fold_again
        )

    async def renew(self, memory: UserMemory) -> None:
        """Fold the messages of proposals again that were made for an earlier memory.

        Those that would change nothing now are deleted. If the model fails, they wait as they are.
        """
        for old in await list_proposals(memory):
            try:
                await self._fold_again(memory, old)
            except (
                errors.MemoryConflictError,
                errors.MemoryNotFoundError,
                errors.ModelError,
            ) as error:
                _log.warning("A proposal for an earlier memory waits as it is: %s", error)
        await change_proposals(
            memory, lambda one: one if one.changes_memory or one.base is None else None
        )

    async def _fold_again(self, memory: UserMemory, old: Proposal) -> Proposal:
        """Store a proposal of the same messages for the accepted memory in the place of `old`."""
        head, _ = await memory.find_head()
        if old.base == ("" if head is None else head.id):
            return old
        self._check(head)
        await self.reading.prepare(self.reading.tokenizer.count(self._question))
        was = {one.id: one for one in old.was}
        said = {key: replace(one, text="") for key, one in was.items()}
        said |= {one.id: one for one in old.said}
        if new := [*map(as_message, said.values())]:
            version, _ = await self._version(memory, head, new, old.thread, was, {})
        else:
            version = old.edit_again(head)
        again = compose(version, head, old.said, old.was, old.messages, old.model)
        again = replace(again, at=old.at)
        step = await revise(memory, lambda one: again if one == old else one)
        if not step.puts or not await memory.commit(step, head):
            message = f"The proposal {old.id} changed or was decided meanwhile: look at it again."
            raise errors.MemoryConflictError(message)
        return again

    def _check(self, head: MemoryVersion | None) -> None:
        if head and head.told and not self._form.fits(head.told[0].line):
            message = (
                "This memory has another form, a profile or facts, which would be overwritten: "
                "give its schema to ConversationMemory, or forget the user first."
            )
            raise errors.ConfigurationError(message)

    async def _version(
        self,
        memory: UserMemory,
        head: MemoryVersion | None,
        new: Sequence[BaseMessage],
        thread: str,
        was: Mapping[str, KeptMessage],
        config: RunnableConfig,
    ) -> tuple[MemoryVersion, list[frozenset[str]]]:
        """Return the version after some messages, and the subjects that they ask to forget.

        A model is shown what a message said before that was edited or taken back; a rule would
        take that for said now.
        """
        told = () if head is None else head.told
        begin = getattr(self.reading.reader, "for_one_fold", None)
        times = await self._find_times(memory, new, thread)
        reader = begin(told, thread, times) if begin else self.reading.reader
        reading = replace(self.reading, reader=reader)
        before = {} if self._built_in else {key: one.text for key, one in was.items()}
        source = ConversationSource(new, thread, self.kept.redact, before)
        fingerprint = make_fingerprint(reading.fingerprint, self._question)
        parent = root = root_id(self._question, fingerprint)
        scope = whole_scope(source.length, calls=reading.config.max_calls)
        fold = begin_fold(self._question, document_of(source), scope)
        if head is not None:
            parent, root = head.id, head.root
            fold["memory"] = drop_ended(head.text)
            if self._built_in:
                now = {one.id: one.text for one in word_for_word(new, thread, self.kept)}
                edits = [(one.day, one.text, now.get(key, "")) for key, one in was.items()]
                fold["memory"] = withdraw(fold["memory"], edits)
            fold["progress"] |= {"step": head.step, "cut": head.cut}
        fold, warnings = await fold_within(reading, fold, source, config=config)
        asked = reader.asked if isinstance(reader, NotesReader) else []
        fold["memory"] = drop_subjects(fold["memory"], asked)
        warnings += getattr(reader, "warnings", ())
        found = getattr(reader, "told", {})
        sources, unsupported = self._form.attest(head, memory_of(fold), source, found)
        self._warn(warnings)
        progress = fold["progress"]
        made = MemoryVersion(
            id=child_id(parent, source.digest, fingerprint),
            parent=parent,
            root=root,
            question=self._question,
            fingerprint=fingerprint,
            step=progress["step"],
            document=ReadDocument(source.digest, thread, source.length, source.length),
            memory=Memory(fold["memory"], unsupported=unsupported),
            tokens=reading.tokenizer.count(fold["memory"]),
            made_by=MessageFold(thread, tuple(str(message.id) for message in new), bool(was)),
            cut=progress["cut"],
            told=sources,
            warnings=warnings,
        )
        return made, asked

    async def _see(
        self,
        messages: Sequence[BaseMessage],
        seen: Mapping[str, BaseMessage],
        config: RunnableConfig,
    ) -> dict[str, BaseMessage]:
        """Return messages by their ids, each picture of theirs described once."""
        if not self.reading.config.pictures:
            return {str(message.id): message for message in messages}
        from memagent_graph.pictures import describe, holds_pictures

        model = getattr(self.reading.reader, "model", None)
        opened = partial(open_source, name="picture.png")
        found: dict[str, BaseMessage] = {}
        for message in messages:
            key = str(message.id)
            found[key] = seen.get(key, message)
            if key not in seen and isinstance(message, HumanMessage) and holds_pictures(message):
                found[key] = await describe(message, model, config, opened)
        return found

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log each kind of warning once: all are in the history of the memory they are about."""
        for warning in warnings:
            kind = warning.partition(":")[0]
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning("%s (Logged once; `history` has it for each memory.)", warning)


async def _find_kept(
    memory: UserMemory, thread: str, ids: Collection[str], *, proposed: bool
) -> dict[str, KeptMessage]:
    """Return a thread's messages as they are kept, or (`proposed`) were before a waiting edit."""
    if not ids:
        return {}
    known = [one for p in await list_proposals(memory) for one in p.was] if proposed else []
    known += (await memory.episodes.read()).said
    return {one.id: one for one in known if one.thread == thread and one.id in ids}
