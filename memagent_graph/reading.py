"""What the nodes of one graph share, and the rules that need no state of LangGraph's."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    ConfigurationError,
    ModelError,
    QuestionError,
    SourceChangedError,
    SourceError,
    TransientModelError,
)
from memagent_graph.memory.version import reading_fingerprint
from memagent_graph.sync import in_thread
from memagent_graph.text.chunking import Chunk, cut_at_sentence, next_chunk
from memagent_graph.text.source import TextSource, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Reader, Update
    from memagent_graph.state import Progress, ReadingState, Run, Stopped
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_PATIENCE = 0.002
"""Seconds after which a reader is one that waits for a model: others need all of the processor."""
_FEW_TOKENS = 256
"""Of a chunk that is cut in less time than a thread takes to begin."""
_LONGEST_PAUSE = 60.0
"""Seconds for which a server's Retry-After is obeyed; the retry policy waits on top."""


@dataclass(frozen=True)
class Reading:
    """A reader with its budgets, its tokenizer and, if it has one of its own, its store."""

    name: str
    reader: Reader
    config: ReadingConfig
    tokenizer: Tokenizer
    store: BaseStore | None = None

    @property
    def fingerprint(self) -> str:
        """Stands for everything that shapes the memories of this reading."""
        config = self.config
        budgets = (config.chunk_tokens, config.memory_tokens, config.exact_cuts)
        return reading_fingerprint(self.reader.fingerprint, self.tokenizer.name, *budgets)

    @property
    def reuses(self) -> bool:
        """Whether stored memories are taken over: not those of a reader that samples."""
        if self.config.reuse is not None:
            return self.config.reuse
        return bool(getattr(self.reader, "deterministic", True))

    def check_question(self, question: str | None) -> int:
        """Count the question's tokens; `QuestionError` when it is empty or over its budget."""
        if not question or not question.strip():
            raise QuestionError('The question is empty: invoke with {"question": ...}.')
        tokens, budget = self.tokenizer.count(question), self.config.question_tokens
        if tokens > budget:
            message = (
                f"The question has {tokens} tokens and its budget is {budget}: shorten it, move "
                "what is to be read into the document, or raise question_tokens."
            )
            raise QuestionError(message)
        return tokens

    async def prepare(self, question_tokens: int) -> None:
        """Let the reader find out about its model, and check that the model's context suffices.

        Raises:
            ConfigurationError: It does not.
            ModelError: There is no such model.
        """
        prepare = getattr(self.reader, "prepare", None)  # readers need not be of our class
        if prepare is not None:
            await prepare()
        check_window(self.reader, self.config, question_tokens)

    def chunk_at(self, source: Source, position: int) -> Chunk | None:
        """The chunk that begins there, None at the end."""
        return next_chunk(
            source,
            position,
            tokenizer=self.tokenizer,
            chunk_tokens=self.config.chunk_tokens,
            exact_cuts=self.config.exact_cuts,
        )

    def chunk(self, state: ReadingState, run: Run) -> Chunk:
        """The chunk at the reading's position.

        Raises:
            SourceError: The document cannot be opened again, or is another one now.
        """
        source = run.source or reopen(state, run)
        position = state["progress"]["position"]
        ahead, run.ahead = run.ahead, None
        if ahead is not None and ahead[0] == position:
            chunk = ahead[1].result()
        else:
            chunk = self.chunk_at(source, position)
        if chunk is None:
            message = f"{source.name} ends before the position that the reading had reached."
            raise SourceChangedError(message)
        return chunk

    def cuts_at_once(self, run: Run) -> bool:
        """Whether the next chunk takes less time than handing the work to a thread does."""
        if type(run.source) is TextSource and self.config.chunk_tokens <= _FEW_TOKENS:
            return True
        return run.ahead is not None and run.ahead[1].done()

    @contextmanager
    def cutting_ahead(self, chunk: Chunk, run: Run) -> Iterator[None]:
        """Cut the chunk after `chunk` while a reader that takes its time reads this one."""

        def cut() -> None:
            run.ahead = chunk.end, in_thread(partial(self.chunk_at, chunk.source, chunk.end))

        if chunk.end == chunk.source.length or run.ahead is not None or self.cuts_at_once(run):
            yield
            return
        starting = asyncio.get_running_loop().call_later(_PATIENCE, cut)
        try:
            yield
        finally:
            starting.cancel()

    async def judged(self, error: ModelError, attempt: int, step: int | None) -> ModelError:
        """The error to raise: this one while attempts are left, else one that names the chunk."""
        if isinstance(error, TransientModelError) and attempt < self.config.max_attempts:
            if error.retry_after:
                await asyncio.sleep(min(error.retry_after, _LONGEST_PAUSE))
            return error
        place = "answering" if step is None else f"reading chunk {step}"
        times = f" after {attempt} attempts" if attempt > 1 else ""
        kept = "" if step is None else f" The memory of the {step - 1} chunks before it is kept."
        message = f"{place.capitalize()} failed{times}: {error}{kept}"
        lasting = ModelError if isinstance(error, TransientModelError) else type(error)
        return lasting(message, chunk=step)

    def within_budget(self, update: Update) -> tuple[str, int, bool]:
        """The memory, its tokens, and whether it had to be cut."""
        tokens, budget = self.tokenizer.count(update.memory), self.config.memory_tokens
        if not update.changed or tokens <= budget:
            return update.memory, tokens, False
        memory = cut_at_sentence(update.memory, budget, self.tokenizer)
        return memory, self.tokenizer.count(memory), True

    def stopped(self, progress: Progress, update: Update, length: int) -> Stopped | None:
        """Why the reading ends after this update, None if it goes on."""
        most = self.config.max_calls
        if progress["position"] >= length:
            return "end"
        if update.done:
            return "done"
        if most is not None and progress["calls"] + 1 >= most:  # the answer is a call too
            return "max_calls"
        return None

    def seconds_left(self, run: Run) -> float | None:
        """Seconds until the deadline, None without one."""
        deadline = self.config.deadline
        return None if deadline is None else run.started + deadline - monotonic()


def check_window(reader: Reader, config: ReadingConfig, question_tokens: int) -> None:
    """Raise `ConfigurationError` when the model's context, if known, is too short for the budgets.

    Args:
        reader: knows the context's length.
        config: the budgets.
        question_tokens: of the question; 0 while there is none. Its budget would be too much to
            ask: with it, the default budgets would not fit the 8,192 tokens that they are for.
    """
    needed = config.window_tokens - config.question_tokens + question_tokens
    holds = reader.window_tokens
    if holds is None or holds >= needed:
        return
    smallest = config.model_copy(update={"chunk_tokens": 1}).window_tokens
    advice = (
        f"Lower chunk_tokens to {config.chunk_tokens - config.window_tokens + holds} or less"
        if smallest <= holds
        else "Lower question_tokens, memory_tokens, answer_tokens and chunk_tokens"
    )
    message = (
        f"The budgets need a context of {needed} tokens for this question, and up to "
        f"{config.window_tokens} for a longer one, but that of {reader.name} holds {holds}. "
        f"{advice}, or serve the model with a longer context."
    )
    raise ConfigurationError(message)


def reopen(state: ReadingState, run: Run) -> Source:
    """The document of a resumed run: given again, or found by its uri.

    Raises:
        SourceError: It cannot be opened again.
        SourceChangedError: It is not what the reading began with.
    """
    record = state["source"]
    document = run.document if run.document is not None else state.get("document")
    if document is None and record["uri"] is None:
        message = (
            f"{record['name']} cannot be opened again: resume with "
            'invoke(None, config, context={"document": ...}).'
        )
        raise SourceError(message)
    source = open_source({"uri": record["uri"]} if document is None else document)
    if source.digest != record["digest"]:
        message = (
            f"{record['name']} is not what it was when the reading began. Start over by "
            "invoking with the question and the document."
        )
        raise SourceChangedError(message)
    run.source = source
    return source


def text_digest(text: str) -> str:
    """Tells whether a memory is still the text of its version."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
