"""Fold messages into the next version of a person's memory."""

from __future__ import annotations

import asyncio
import json
import logging
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage

from memagent_graph.conversation.built_in import (
    NewestReader,
    drop_ended,
    drop_subjects,
    topics,
    withdraw,
)
from memagent_graph.conversation.messages import (
    ConversationSource,
    as_message,
    is_excluded,
    word_for_word,
)
from memagent_graph.conversation.profile import Past, read_entries
from memagent_graph.conversation.profile_reader import PROFILE_QUESTION, ProfileReader
from memagent_graph.conversation.prompt import first_day, newest_first, prepare, take_first
from memagent_graph.conversation.proposal import (
    Decision,
    change_proposals,
    compose,
    decide,
    list_proposals,
    propose,
    revise,
)
from memagent_graph.conversation.reader import (
    STANDING_QUESTION,
    NotesReader,
    compose_question,
    resolve_keeper,
)
from memagent_graph.conversation.search import recall
from memagent_graph.conversation.user_memory import CONVERSATION, MemoryChange
from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    ModelError,
    StoreError,
)
from memagent_graph.evidence.places import Memory, with_text
from memagent_graph.evidence.statements import drop_statements, is_later, statements
from memagent_graph.graph.fold import advance
from memagent_graph.graph.layers import add_layers
from memagent_graph.graph.layers.check import state_of, warn_of_faults
from memagent_graph.graph.reading import Call, Reading, check_window, warn_of_left_out
from memagent_graph.graph.state import begin_fold, document_of, memory_of, whole_scope
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.version import (
    LineSource,
    MemoryVersion,
    MessageFold,
    ReadDocument,
    child_id,
    make_fingerprint,
    root_id,
)
from memagent_graph.templates import plural
from memagent_graph.text.chunks import chunks, cut_at_sentence
from memagent_graph.text.files import open_source
from memagent_graph.text.terms import terms
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.episodes import Branch, EpisodePuts, KeptMessage
    from memagent_graph.conversation.messages import Line, Redact
    from memagent_graph.conversation.profile import Fields
    from memagent_graph.conversation.proposal import Approve, Proposal
    from memagent_graph.conversation.user_memory import Changed, UserMemory
    from memagent_graph.errors import BadRecordError
    from memagent_graph.evidence.places import Unsupported
    from memagent_graph.facts.record import Facts
    from memagent_graph.graph.state import Fold
    from memagent_graph.memory.atomic import Value
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike


@dataclass(frozen=True)
class Keeping:
    """Rules for what is kept of messages: each text passes `redact`.

    Statements with a word of `never` are left out; if it has no word to match, nothing is kept.
    """

    redact: Redact
    never: str

    def keep(self, messages: Iterable[BaseMessage], thread: str) -> list[KeptMessage]:
        """Return messages as they are kept; one of which nothing remains has no text."""
        known = word_for_word(messages, thread, self.redact)
        return [replace(one, text=self.drop_banned(one.text)) for one in known]

    def clean_text(self, text: str) -> str:
        """Return a text as it is kept: redacted, and without what is banned."""
        return self.drop_banned(self.redact(text))

    def allows(self, text: str) -> bool:
        """Whether nothing in a text is banned."""
        return self.drop_banned(text) == text

    def drop_banned(self, text: str) -> str:
        """Return a text without the statements that are banned."""
        if not self.never.strip():
            return text
        banned = topics(self.never)
        if not banned:
            return ""
        if banned.isdisjoint(terms(text)):
            return text
        return drop_statements(text, lambda said: not banned.isdisjoint(said))[0]


_ASKED_TWICE = 2
"""Calls of a chunk that was read whole and whose notes had to be written once more."""


async def fold_within(
    reading: Reading, fold: Fold, source: Source, *, config: RunnableConfig | None = None
) -> tuple[Fold, tuple[str, ...]]:
    """Fold a whole conversation into a memory, of which `reading.cut` takes the oldest lines.

    Returns what had to give way as well, in words that quote nothing.
    """
    was_cut, again, unfinished, lost = fold["progress"]["cut"], 0, 0, 0

    def cut(text: str, tokens: int, tokenizer: Tokenizer) -> str:
        nonlocal lost
        kept = reading.cut(text, tokens, tokenizer)
        lost += len(_pieces(text)) - len(_pieces(kept))
        return kept

    call = Call(replace(reading, cut=cut), config)
    for chunk in chunks(
        source,
        tokenizer=reading.tokenizer,
        chunk_tokens=reading.config.chunk_tokens,
        exact_cuts=reading.config.exact_cuts,
    ):
        calls, dropped = fold["progress"]["calls"], lost
        faults = state_of(fold)["asked"]
        fold["progress"]["cut"] = False
        fold = await advance(call, fold, chunk)
        asked = fold["progress"]["calls"] - calls - (state_of(fold)["asked"] - faults)
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
    warnings += warn_of_faults(state_of(fold)["faulty"], exact=False)
    warnings += warn_of_left_out(fold["progress"], {})
    if unfinished:
        warnings.append(
            "The model's reply was cut off, so that the end of the memory is missing. Raise "
            "memory_tokens, or max_tokens of the model."
        )
    return fold, tuple(warnings)


def keep_newest(text: str, tokens: int, tokenizer: Tokenizer) -> str:
    """The newest lines of a memory that fit, in their order.

    A line is as old as the first day in it ("2026-03-05"), or else as the line above; of one day,
    the line below is the newer. A memory of one line is taken by its sentences. The newest line is
    cut at a sentence's end if it does not fit by itself.
    """
    pieces = _pieces(text)
    if not pieces:
        return ""
    joint = "\n" if "\n" in text.strip() else " "
    order = newest_first(map(first_day, pieces))

    def join(some: list[int]) -> str:
        return joint.join(pieces[index] for index in sorted(some))

    kept = take_first(order, lambda some: tokenizer.count(join(some)) <= tokens)
    return join(kept) if kept else cut_at_sentence(pieces[order[0]], tokens, tokenizer)


def _pieces(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) > 1 else [statement.text for statement in statements(text)]


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
        fields: Fields[Any] | None,
        facts: Facts | None,
        past: Past,
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
            fields=fields,
            facts=facts,
        )
        self._facts = facts
        cut: Callable[[str, int, Tokenizer], str] = fields.cut if fields else keep_newest
        if facts is not None:
            from memagent_graph.facts.reader import cut_facts, with_room

            config, cut = with_room(config, reader), cut_facts
        check_window(reader.identity, config, question_tokens=0)
        counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
        if fields is not None:
            config = _with_room_for(fields, config, counter)
        self.reading = add_layers(Reading("conversation", reader, config, counter, cut=cut))
        asked = STANDING_QUESTION if fields is None else PROFILE_QUESTION
        self._question = compose_question(keep, never, asked)
        self._model = reader.identity.name
        self._past = past
        self._approve = approve
        self.keeping = Keeping(redact, never)
        self._warned: set[str] = set()
        if counter.count(self._question) > config.question_tokens:
            message = (
                f"The instructions in keep and never are too long: with the standing question they "
                f"may have {config.question_tokens} tokens. Shorten them, or raise question_tokens."
            )
            raise ConfigurationError(message)

    async def fold(
        self,
        memory: UserMemory,
        thread: str,
        config: RunnableConfig,
        folding: Sequence[BaseMessage],
        branch: Branch,
    ) -> int:
        """Fold new and edited messages onto the newest version, and return their number.

        Raises:
            ModelError: The model failed; nothing was folded.
            StoreError: The store failed.
            MemoryConflictError: Other turns of this user were faster each time.
            ConfigurationError: The memory is a profile, and this one has no schema.
        """
        await self.reading.prepare(self.reading.tokenizer.count(self._question))
        redact, replaced = self.keeping.redact, branch.replaced
        before: MemoryVersion | None = None
        seen: dict[str, BaseMessage] = {}
        mark: Value | BadRecordError | None = None
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            head, was_lost = await memory.find_head()
            marked, mark = mark, await memory.read_mark(thread)
            if (before and not head) or (marked and not mark):
                return 0  # the user was forgotten at this moment
            self._check(head)
            before = head
            changed = await memory.find_changed(thread, folding, redact)
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
            kept = self.keeping.keep(new, thread)
            kept = [replace(m, text=drop_subjects(m.text, asked)) for m in kept[:-1]] + kept[-1:]
            step = await self._keep(memory, kept, was, changed, asked)
            step = memory.put_said(thread, mark, changed, branch) | step
            if version is None:
                if await memory.commit(step, head):
                    return 0
                continue
            ids = [str(message.id) for message in new]
            if self._approve:
                told = [one for one in kept if one.text]
                proposal = compose(version, head, told, [*was.values()], ids, self._model)
                step = await propose(memory, proposal, step, gone, asked)
                if await memory.commit(step, head):
                    await self._ask(memory, proposal)
                    return len(new)
                continue
            change = MemoryChange(
                version.created_at, "folded", CONVERSATION, version.id, thread, (*ids,), self._model
            )
            if await memory.advance(version, head, change, step):
                await _prepare(memory, version.text)
                return len(new)
        message = f"Other turns changed this memory {MOST_LOST_RACES} times meanwhile: try again."
        raise MemoryConflictError(message)

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
            clean=lambda text: drop_subjects(self.keeping.drop_banned(text), asked),
        )

    async def _find_times(
        self, memory: UserMemory, new: Sequence[BaseMessage], thread: str
    ) -> dict[str, str]:
        """Return when statements were made, if new ones are older than kept ones of their day."""
        if not self._built_in or memory.episodes.off:
            return {}
        said = self.keeping.keep(new, thread)
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
        return isinstance(self.reading.reader, NewestReader)

    async def _ask(self, memory: UserMemory, proposal: Proposal) -> None:
        """Let the function decide, if there is one; if it fails, the proposal waits."""
        if not callable(self._approve) or not proposal.changes_memory:
            return
        try:
            verdict = self._approve(proposal)
            if isawaitable(verdict):
                verdict = await verdict
            if isinstance(verdict, str):
                decision = Decision(edit={proposal.id: verdict})
            elif isinstance(verdict, bool):
                ids = [proposal.id]
                decision = Decision(accept=ids) if verdict else Decision(refuse=ids)
            elif verdict is not None:
                _log.warning("approve must return True, False, a text or None: a proposal waits.")
            if isinstance(verdict, str | bool):
                await self.decide(memory, decision, by="approve")
        except Exception as error:  # noqa: BLE001 - whatever it raises, nothing is lost
            _log.warning("approve failed, and a proposal waits for approval: %s", error)

    async def decide(self, memory: UserMemory, decision: Decision, *, by: str) -> None:
        """Carry out a decision about proposals; see `proposal.decide`.

        Edited texts are redacted, lose what `never` bans, and must be within the budget.
        """
        edit = {key: self.keeping.clean_text(text) for key, text in decision.edit.items()}
        most = self.reading.config.memory_tokens
        if any(self.reading.tokenizer.count(text) > most for text in edit.values()):
            message = f"The text has more than {most} tokens: shorten it, or raise memory_tokens."
            raise ConfigurationError(message)
        fold_again = partial(self._fold_again, memory)
        await decide(
            memory, decision.model_copy(update={"edit": edit}), by=by, fold_again=fold_again
        )

    async def renew(self, memory: UserMemory) -> None:
        """Fold the messages of proposals again that were made for an earlier memory.

        Those that would change nothing now are deleted. If the model fails, they wait as they are.
        """
        same = set[str]()
        for old in await list_proposals(memory):
            try:
                new = await self._fold_again(memory, old)
            except (MemoryConflictError, MemoryNotFoundError, ModelError) as error:
                _log.warning("A proposal for an earlier memory waits as it is: %s", error)
            else:
                same |= set() if new.changes_memory else {new.id}
        if same:
            await change_proposals(memory, lambda one: None if one.id in same else one)

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

        def swap(one: Proposal) -> Proposal:
            return again if one == old else one

        step = await revise(memory, swap)
        if not step.puts or not await memory.commit(step, head):
            message = f"The proposal {old.id} changed or was decided meanwhile: look at it again."
            raise MemoryConflictError(message)
        return again

    def _check(self, head: MemoryVersion | None) -> None:
        if head is None or not head.told:
            return
        is_profile = bool(read_entries(head.told[0].line)[0])
        form = "a profile" if is_profile else "one of facts"
        fits = isinstance(self.reading.reader, ProfileReader) if is_profile else self._facts
        if not fits:
            message = (
                f"This memory is {form}, which notes would overwrite: give its schema to "
                "ConversationMemory, or forget the user first."
            )
            raise ConfigurationError(message)

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
        source = ConversationSource(new, thread, self.keeping.redact, before)
        said = source.lines
        fingerprint = make_fingerprint(reading.fingerprint, self._question)
        parent = root = root_id(self._question, fingerprint)
        scope = whole_scope(source.length, calls=reading.config.max_calls)
        fold = begin_fold(self._question, document_of(source), scope)
        if head is not None:
            parent, root = head.id, head.root
            fold["memory"] = drop_ended(head.text)
            if self._built_in:
                now = {one.id: one.text for one in self.keeping.keep(new, thread)}
                edits = [(one.day, one.text, now.get(key, "")) for key, one in was.items()]
                fold["memory"] = withdraw(fold["memory"], edits)
            fold["progress"] |= {"step": head.step, "cut": head.cut}
        fold, warnings = await fold_within(reading, fold, source, config=config)
        sources: tuple[LineSource, ...] = ()
        unsupported: tuple[Unsupported, ...] = ()
        asked = reader.asked if isinstance(reader, NotesReader) else []
        fold["memory"] = drop_subjects(fold["memory"], asked)
        warnings += getattr(reader, "warnings", ())
        if self._facts is not None:
            facts = memory_of(fold)
            marks = () if head is None else with_text(facts.text, head.memory).unsupported
            unsupported = tuple(dict.fromkeys((*marks, *facts.unsupported)))
            sources = _attest_facts(told, facts, said, thread)
        if isinstance(reader, ProfileReader):
            sources = self._past.attest(reader.told.values(), fold["memory"], said[-1].at)
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
            made_by=MessageFold(thread, tuple(str(message.id) for message in new)),
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
        from memagent_graph.pictures.sight import describe, holds_pictures

        model = getattr(self.reading.reader, "model", None)
        opened = partial(open_source, name="picture.png")
        found: dict[str, BaseMessage] = {}
        for message in messages:
            key = str(message.id)
            if key in seen or not (isinstance(message, HumanMessage) and holds_pictures(message)):
                found[key] = seen.get(key, message)
            else:
                found[key] = await describe(message, model, config, opened)
        return found

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log each kind of warning once: all are in the history of the memory they are about."""
        for warning in warnings:
            kind = warning.partition(":")[0]
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning("%s (Logged once; `history` has it for each memory.)", warning)


def _attest_facts(
    before: Sequence[LineSource], memory: Memory, said: Sequence[Line], thread: str
) -> tuple[LineSource, ...]:
    """Return the sources of the lines of facts after a fold, also of those that it changed."""
    from memagent_graph.facts.record import facts_of, read_fact

    starts = [one.start for one in said]
    known = {fact.triple: item for item in before if (fact := read_fact(item.line))}
    found = []
    for fact in facts_of(memory):
        source = known.get(fact.triple)
        if fact.evidence:
            message = said[max(0, bisect(starts, fact.evidence[-1].start) - 1)]
            source = LineSource(fact.line, message.message, thread, message.at)
        if source is not None:
            found.append(replace(source, line=fact.line, until=""))
    return tuple(found)


def _with_room_for(fields: Fields[Any], config: ReadingConfig, counter: Tokenizer) -> ReadingConfig:
    """The budgets, with chunks that leave room for the schema, which each prompt has."""
    schema = counter.count(json.dumps(fields.changes, ensure_ascii=False))
    if 2 * schema > config.chunk_tokens:
        message = (
            f"The schema of {fields.schema.__name__} has {schema} tokens, which is more than half "
            f"of chunk_tokens ({config.chunk_tokens}): raise that, or leave out fields."
        )
        raise ConfigurationError(message)
    return config.model_copy(update={"chunk_tokens": config.chunk_tokens - schema})


async def _find_kept(
    memory: UserMemory, thread: str, ids: Collection[str], *, proposed: bool
) -> dict[str, KeptMessage]:
    """Return a thread's messages as they are kept, or (`proposed`) were before a waiting edit."""
    if not ids:
        return {}
    known = [one for p in await list_proposals(memory) for one in p.was] if proposed else []
    if not memory.episodes.off:
        known += (await memory.episodes.read()).said
    return {one.id: one for one in known if one.thread == thread and one.id in ids}


async def _prepare(memory: UserMemory, text: str) -> None:
    """Make what is kept now ready to be searched: the next reply need not wait for that."""
    if memory.episodes.off:
        return
    with suppress(StoreError):  # the next reply finds out, and says so
        kept = await memory.episodes.read()
        await asyncio.to_thread(recall, kept)
        await asyncio.to_thread(prepare, text)
