"""Fold messages into the next version of a person's memory."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memagent_graph.conversation.asking import STANDING_QUESTION, standing_question
from memagent_graph.conversation.keeping import Keeping
from memagent_graph.conversation.messages import unfolded
from memagent_graph.conversation.profile import Past, Said, attest
from memagent_graph.conversation.profiling import PROFILE_QUESTION, ProfileReader, keep_fitting
from memagent_graph.conversation.recalling import recall
from memagent_graph.conversation.rendering import render
from memagent_graph.conversation.resolve import resolve_keeper
from memagent_graph.conversation.room import fold_within, keep_newest
from memagent_graph.conversation.telling import prepare
from memagent_graph.errors import ConfigurationError, MemoryConflictError, StoreError
from memagent_graph.graph.reading import Reading, check_window
from memagent_graph.graph.state import begun, memory_of, record_of
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.version import MemoryVersion, child_id, reading_fingerprint, root_id
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.fields import Fields
    from memagent_graph.conversation.redaction import Redact
    from memagent_graph.graph.state import SourceRecord
    from memagent_graph.memory.personal import PersonalMemory
    from memagent_graph.memory.version import Told
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike

_REMEMBERED = 100
"""Folded messages of a thread that are known by their ids after they left it, at least."""

_log = logging.getLogger(__name__)


class Folding:
    """Folds messages into memories; arguments as for `ConversationMemory`.

    Args:
        fields: fields of the profile, if the memory is one; None for a text.
        past: limits on the replaced values that are kept.

    Attributes:
        reading: the reader that folds, and the budgets.
        keeping: rules for the messages that are kept word for word.
    """

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None,
        config: ReadingConfig,
        tokenizer: TokenizerLike,
        *,
        keep: str,
        never: str,
        redact: Redact,
        window: int,
        fields: Fields[Any] | None,
        past: Past,
    ) -> None:
        # Most of what people say is nothing to remember.
        config = config.model_copy(update={"update_gate": True, "recalls": 0})
        reader = resolve_keeper(
            model, config=config, tokenizer=tokenizer, keep=keep, never=never, fields=fields
        )
        check_window(reader.identity, config, question_tokens=0)
        counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
        if fields is not None:
            config = _with_room_for(fields, config, counter)
        cut = keep_newest if fields is None else keep_fitting(fields)
        self.reading = Reading("conversation", reader, config, counter, cut=cut)
        asked = STANDING_QUESTION if fields is None else PROFILE_QUESTION
        self._question = standing_question(keep, never, asked)
        self._redact = redact
        self._model = reader.identity.name
        self._past = past
        self.keeping = Keeping(redact, never)
        self._known = max(_REMEMBERED, 2 * window)
        self._warned: set[str] = set()
        if counter.count(self._question) > config.question_tokens:
            message = (
                f"The instructions in keep and never are too long: with the standing question they "
                f"may have {config.question_tokens} tokens. Shorten them, or raise question_tokens."
            )
            raise ConfigurationError(message)

    async def fold(
        self,
        memory: PersonalMemory,
        thread: str,
        config: RunnableConfig,
        folding: Sequence[BaseMessage],
    ) -> int:
        """Fold new messages onto the newest version, and return their number.

        Args:
            memory: the user's memory.
            thread: id of the conversation.
            config: configuration of the model's calls.
            folding: messages with ids.

        Raises:
            ModelError: The model failed; nothing was folded.
            StoreError: The store failed.
            MemoryConflictError: Other turns of this user were faster each time.
            ConfigurationError: The memory is a profile, and this one has no schema.
        """
        await self.reading.prepare(self.reading.tokenizer.count(self._question))
        before: MemoryVersion | None = None
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            head = await memory.head()
            if head is None and before is not None:
                return 0  # the user was forgotten at this moment
            self._check(head)
            before = head
            done = await memory.folded(thread)
            new = unfolded(folding, done, whole=len(done) < self._known)
            step = await memory.episodes.keep(
                self.keeping.said(folding, thread),
                new={str(message.id) for message in new},
                clean=self.keeping.clean,
            )
            if not new:
                if step.puts and not await memory.bank.records.commit(step.puts, step.given):
                    continue
                return 0
            # Others may still want to fold what left the thread only now.
            known = done[-self._known :]
            fresh = [str(message.id) for message in new]
            ids = (*known, *fresh)
            version = await self._version(head, new, thread, ids, config)
            done_now = await memory.add(
                version, after=head, new=fresh, model=self._model, step=step
            )
            if done_now:
                await _prepare(memory, version.text)
                return len(new)
        message = f"Other turns changed this memory {MOST_LOST_RACES} times meanwhile: try again."
        raise MemoryConflictError(message)

    def _check(self, head: MemoryVersion | None) -> None:
        if head is None or not head.told or isinstance(self.reading.reader, ProfileReader):
            return
        message = (
            "This memory is a profile, which notes would overwrite: give its schema to "
            "ConversationMemory, or forget the user first."
        )
        raise ConfigurationError(message)

    async def _version(
        self,
        head: MemoryVersion | None,
        new: Sequence[BaseMessage],
        thread: str,
        messages: tuple[str, ...],
        config: RunnableConfig,
    ) -> MemoryVersion:
        reading, profiling = self.reading, None
        if isinstance(reading.reader, ProfileReader):
            profiling = reading.reader.for_one_fold()
            reading = replace(reading, reader=profiling)
        said, text = self._rendered(new)
        source = TextSource(text, thread)
        fingerprint = reading_fingerprint(reading.fingerprint, self._question)
        parent = root = root_id(self._question, fingerprint)
        most = reading.config.max_calls
        record: SourceRecord = {**record_of(source), "calls": most}
        fold = begun(self._question, record)
        if head is not None:
            parent, root = head.id, head.root
            fold["memory"] = head.text
            fold["progress"] |= {"step": head.step, "cut": head.cut}
        fold, warnings = await fold_within(reading, fold, source, config=config)
        told: tuple[Told, ...] = ()
        if profiling is not None:
            warnings += profiling.warnings
            before = () if head is None else head.told
            evidence = memory_of(fold).evidence
            told = attest(before, fold["memory"], evidence, said, thread=thread, past=self._past)
        self._warn(warnings)
        progress = fold["progress"]
        return MemoryVersion(
            id=child_id(parent, source.digest, fingerprint),
            parent=parent,
            root=root,
            text=fold["memory"],
            tokens=reading.tokenizer.count(fold["memory"]),
            step=progress["step"],
            question=self._question,
            source=source.digest,
            source_name=thread,
            start=0,
            end=source.length,
            length=source.length,
            fingerprint=fingerprint,
            cut=progress["cut"],
            thread=thread,
            messages=messages,
            told=told,
            warnings=warnings,
        )

    def _rendered(self, messages: Sequence[BaseMessage]) -> tuple[list[Said], str]:
        """The messages as text, and where each begins in it."""
        said, parts, start = [Said(0, "", "")], [], 0
        for message, at, text in render(messages, self._redact):
            said.append(Said(start, str(message.id), at))
            parts.append(text)
            start += len(text)
        return said[1:] or said, "".join(parts)

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log each kind of warning once: all are in the history of the memory they are about."""
        for warning in warnings:
            kind = warning.partition(":")[0]
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning("%s (Logged once; `history` has it for each memory.)", warning)


def _with_room_for(fields: Fields[Any], config: ReadingConfig, counter: Tokenizer) -> ReadingConfig:
    """The budgets, with chunks that leave room for the schema, which the model is told each time.

    Raises:
        ConfigurationError: It leaves less than half of a chunk.
    """
    schema = counter.count(json.dumps(fields.changes, ensure_ascii=False))
    if 2 * schema > config.chunk_tokens:
        message = (
            f"The schema of {fields.schema.__name__} has {schema} tokens, which is more than half "
            f"of chunk_tokens ({config.chunk_tokens}): raise that, or leave out fields."
        )
        raise ConfigurationError(message)
    return config.model_copy(update={"chunk_tokens": config.chunk_tokens - schema})


async def _prepare(memory: PersonalMemory, text: str) -> None:
    """Make what is kept now ready to be searched: the next reply need not wait for that."""
    if memory.episodes.off:
        return
    try:
        kept = await memory.episodes.read()
    except StoreError:
        return  # the next reply finds out, and says so
    await asyncio.to_thread(recall, kept)
    await asyncio.to_thread(prepare, text)
