"""A reader that asks a chat model for memories, merges and answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.constants import TAG_NOSTREAM

from memagent_graph.config import ReadingConfig
from memagent_graph.errors import EmptyReplyError
from memagent_graph.evidence.align import align, carry
from memagent_graph.evidence.places import Memory, Unsupported, with_passages
from memagent_graph.evidence.statements import notes
from memagent_graph.evidence.support import align_answer, cite, decide, resolve_verifier
from memagent_graph.models.reply import (
    AnswerRelay,
    ask_like_caller,
    find_boxed,
    finish_reason,
    is_cut_off,
    listener_of,
    take_reply,
    usage_of,
    whole_sentences,
)
from memagent_graph.models.structured import constraint, fill, shape_of
from memagent_graph.pictures import MOST_AGAIN, choose, fits, numbers_in, to_blocks
from memagent_graph.prompts import SHORTER, default_prompts
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.readers.replies import (
    check_overwrite,
    is_unchanged,
    key_words,
    says_not_found,
    says_nothing,
)
from memagent_graph.seams import find_identifying_params
from memagent_graph.text.tokens import control_tokens, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.align import Aligned
    from memagent_graph.evidence.places import Evidence
    from memagent_graph.evidence.support import Verify
    from memagent_graph.models.structured import ResponseFormat, Shape
    from memagent_graph.pictures import Sight
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Step
    from memagent_graph.text.tokens import Tokenizer


_CLOSING = re.compile(r"</([A-Za-z]\w*)>")
"""A delimiter of a prompt."""


class ChatReader(Reader):
    """Asks a chat model for each new memory and for the answer.

    Reasoning in a reply ("<think>...") is removed. The evidence of the memory's statements and of
    the answer is found by matching words with the document, without further calls.

    Args:
        model: any LangChain chat model.
        prompts: the prompts; if None, those of a model of its size, as its name says it or, from
            `prepare` on, its server.
        config: budgets in tokens. Those for memory and answer become `max_tokens` of the calls,
            unless the model already has a limit.
        name: its name in output; the model's own name by default.
        verify: decides which statements with a passage in the document are supported; without it,
            their names and numbers decide. A function (passage, statement) that returns a
            probability from 0 to 1, or a decision model of LangChain.
        response_format: the shape of its answers: a pydantic model, a dataclass, a TypedDict, or a
            JSON schema of an object.
        tokenizer: tokenizer of the model, by default its own if it has one: no text can forge one
            of its control tokens.
    """

    shortens = True
    reply_share = 1.0
    """Token limit of a reply with a new memory, as a multiple of the memory's budget."""

    def __init__(
        self,
        model: BaseChatModel,
        *,
        prompts: Prompts | None = None,
        config: ReadingConfig | None = None,
        name: str | None = None,
        verify: Verify | None = None,
        response_format: ResponseFormat | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        config = config or ReadingConfig()
        self.shape = None if response_format is None else shape_of(response_format)
        self.model = model
        own_tokenizer = getattr(model, "tokenizer", None)
        self._control = control_tokens(own_tokenizer) | control_tokens(tokenizer)
        self._verifier = resolve_verifier(verify)
        self._config, self._has_default_prompts, self._is_prepared = config, prompts is None, False
        self.identity = Identity(
            name or model_name(model), "", own_tokenizer, getattr(model, "window_tokens", None)
        )
        most = getattr(model, "max_concurrency", None) or getattr(model, "max_batch", None)
        self.concurrency = most or Reader.concurrency
        self._counter = load_tokenizer(own_tokenizer or tokenizer)
        self._memory_tokens = config.memory_tokens
        self._update_options = _limit(model, int(self.reply_share * config.memory_tokens))
        self._answer_options = _limit(model, config.answer_tokens)
        self._use(prompts or prompts_for(model, config))

    def _use(self, prompts: Prompts) -> None:
        """Take these prompts, which are a part of what the reader is."""
        self.prompts = prompts.guard_against(self._control)
        about = [type(self.model).__name__, _identity(self.model), self.prompts.fingerprint]
        if self._verifier is not None:
            about.append(self._verifier.name)
        budgets = [self._config.memory_tokens, self._config.answer_tokens]
        # The `str` of what JSON cannot encode may hold an address in memory.
        record = json.dumps(
            [*about, *budgets], sort_keys=True, default=lambda value: type(value).__qualname__
        )
        fingerprint = sha256(record.encode()).hexdigest()[:32]
        self.identity = replace(self.identity, fingerprint=fingerprint)
        self.adds = self.prompts.adds
        self.shows_passages = self.prompts.shows_passages
        tags = frozenset(_CLOSING.findall(self.prompts.update + self.prompts.merge))
        asked = self.prompts.instructions
        said = [key_words(note.text) for text in asked for note in notes(text)]
        self._check = partial(check_overwrite, tags=tags, prompt=said)

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """Whether the answer must have a shape."""
        return self.shape is not None

    async def prepare(self) -> Identity:
        """Ask the server for the model's context length and size."""
        discover = getattr(self.model, "adiscover", None)
        if discover is not None:
            self.identity = replace(self.identity, window_tokens=await discover())
            if self._has_default_prompts:
                self._use(prompts_for(self.model, self._config))
        self._is_prepared = True
        return self.identity

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Ask for the memory after a chunk. A reply cut off by its budget is trimmed to a sentence.

        Raises `EmptyReplyError` if it is asked for shorter notes and replies "unchanged".
        """
        if not self._is_prepared:  # a process that resumes a reading begins with a chunk
            await self.prepare()
        prompt = self.prompts.for_update(
            step.question,
            self._show(step.memory),
            step.chunk.shown,
            self._memory_tokens,
            again=step.shorter,
            repeat=step.fault is not None,
            gate=step.update_gate,
        )
        shown = step.chunk.pictures
        seen, left_out = await to_blocks(shown) if shown else ((), {})
        reply, text = await self._ask(prompt, unheard(config), self._update_options, seen)
        cost, ending = usage_of(reply), finish_reason(reply)
        update = Update(None, cost, ending, unfinished=is_cut_off(reply), left_out=left_out)
        if step.update_gate and is_unchanged(text):
            if step.shorter:
                raise EmptyReplyError(
                    'Asked for shorter notes, the model replied "unchanged": raise memory_tokens.'
                )
            return update
        if self.adds:
            return await self._add(step, whole_sentences(reply, text), update, config)
        return await self._take(step, reply, text, update)

    def _show(self, memory: Memory) -> str:
        return memory.text

    async def _take(self, step: Step, reply: AIMessage, text: str, update: Update) -> Update:
        text = whole_sentences(reply, text)
        question = "" if self.standing else step.question
        found = self._check(
            text, step.memory.text, step.chunk.text, question=question, unfinished=update.unfinished
        )
        update = replace(update, fault=found.fault)
        if not step.exact:
            if found.unchanged or not found.text:
                return update
            text = found.text
        aligned = await self._decide(align(text, step.memory, step.chunk, step.question))
        return replace(update, memory=_without_seen(aligned.memory, step.chunk.pictures))

    async def _add(
        self, step: Step, text: str, update: Update, config: RunnableConfig | None
    ) -> Update:
        """The update with what the chunk says added to the memory, merged if that is too long."""
        read = step.chunk.text
        check = partial(self._check, question=step.question)
        found = check(text, "", read)
        if not step.exact:
            text = found.text
            update = replace(update, fault=found.fault)
            if found.fault or not text:
                return update
        before = step.memory.text
        lines = {line.strip() for line in before.splitlines()}
        added = [line for line in text.splitlines() if line.strip() not in lines]
        whole = "\n".join([before, *added] if before else added)
        if before and self._counter.count(whole) > self._memory_tokens:
            budget = int((SHORTER if step.shorter else 1) * self._memory_tokens)
            prompt = self.prompts.for_merge(step.question, [before, text], budget)
            reply, merged = await self._ask(prompt, unheard(config), self._update_options)
            update = replace(update, usage=update.usage + usage_of(reply))
            merged = whole_sentences(reply, merged)
            found = check(merged, whole, read, unfinished=is_cut_off(reply))
            whole = (
                merged if step.exact else found.text if found.text and not found.fault else whole
            )
        aligned = await self._decide(align(whole, step.memory, step.chunk, step.question))
        # The end of a long reply is missing, and nothing of what was noted.
        return replace(update, memory=aligned.memory, unfinished=False)

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Ask for one memory in place of several."""
        texts = [memory.text for memory in memories]
        prompt = self.prompts.for_merge(question, texts, self._memory_tokens)
        reply, text = await self._ask(prompt, unheard(config), self._update_options)
        text = whole_sentences(reply, text)
        before = "\n".join(texts)
        found = self._check(text, before, "", question=question, unfinished=is_cut_off(reply))
        if not self._config.exact_cuts:
            text = before if found.unchanged else found.text or text or before
        aligned = await self._decide(carry(text, memories, question))
        return Merge(aligned.memory, usage_of(reply), found.fault)

    async def respond(
        self,
        question: str,
        memory: Memory,
        *,
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Ask for the answer; a listener in the config hears it as it is written.

        It sees the pictures of the memory again. If there is no room for all of them, the model is
        asked before which it needs.
        """
        seen, left_out, cost = await self._see_again(question, memory, config)
        known = with_passages(memory)
        shown = [passage.shown.strip() for passage in memory.passages]
        if self.shape is not None:
            prompt = self.prompts.for_structured_answer(question, memory.text, shown)
            answer = await self._fill(self.shape, prompt, question, known, config, seen)
        else:
            prompt = self.prompts.for_answer(question, memory.text, shown)
            listener, heard = listener_of(config), config
            if listener is not None:
                relay = AnswerRelay(listener, boxed=r"\boxed" in self.prompts.answer)
                heard = unheard(config, relay)
            reply = await self._ask(prompt, heard, self._answer_options, seen)
            answer = await self._answer(*reply, question, known)
            if listener is not None:
                relay.finish(answer.final)
        return replace(answer, left_out=left_out, usage=cost + answer.usage)

    async def _see_again(
        self, question: str, memory: Memory, config: RunnableConfig | None
    ) -> tuple[Sequence[dict[str, Any]], dict[str, int], Usage]:
        """Return the pictures that the answer sees, those left out by why, and the cost to ask.

        If there is no room for all of them, the model says which it needs.
        """
        shown, tokens = memory.pictures, self._config.pictures
        if not shown:
            return (), {}, Usage()
        without_room, usage = dict[str, int](), Usage()
        if not fits(shown, tokens, self.model):
            marks = [one.picture.mark for one in shown]
            prompt = self.prompts.for_pictures(question, memory.text, marks, MOST_AGAIN)
            reply, text = await self._ask(prompt, unheard(config), self._answer_options)
            shown, without_room = choose(text, shown, tokens, self.model)
            usage = usage_of(reply)
        blocks, gone = await to_blocks(shown)
        return blocks, {**without_room, **gone}, usage

    async def _fill(
        self,
        shape: Shape,
        prompt: str,
        question: str,
        known: Memory,
        config: RunnableConfig | None,
        seen: Sequence[dict[str, Any]],
    ) -> Answer:
        """Ask for an answer in a shape. Its JSON is streamed only after it is known to match."""

        async def ask(messages: list[BaseMessage], more: dict[str, Any]) -> tuple[AIMessage, str]:
            first, *rest = messages
            options = {**self._answer_options, **more}
            return await self._ask(first.text, unheard(config), options, seen, rest)

        plain, replies = await fill(shape, prompt, ask, constraint(self.model, shape))
        text = json.dumps(plain, ensure_ascii=False)
        if (listener := listener_of(config)) is not None:
            AnswerRelay(listener, boxed=False).finish(text)
        leaves, choices = [*_leaves(plain)], shape.choices
        stated = "\n".join(leaf for leaf in leaves if leaf not in choices)
        aligned = await self._decide(align_answer(stated, known, question), question)
        is_filled = any(value not in (None, "", [], {}) for value in plain.values())
        return Answer(
            text,
            text,
            found=is_filled and bool(known.text.strip()) and aligned.has_support,
            evidence=_once_each(cite("\n".join(leaves), known, question)),
            unsupported=aligned.memory.unsupported,
            usage=sum(map(usage_of, replies), Usage()),
            finish_reason=finish_reason(replies[-1]),
            structured=plain,
        )

    async def _decide(self, aligned: Aligned, question: str = "") -> Aligned:
        return await decide(aligned, self._verifier, question) if self._verifier else aligned

    async def _answer(self, reply: AIMessage, text: str, question: str, known: Memory) -> Answer:
        """Return the answer of a reply to a prompt that shows what is known."""
        final = find_boxed(text)
        aligned = await self._decide(align_answer(final, known, question), question)
        found = not says_nothing(final, known.text, question) and aligned.has_support
        unsupported = aligned.memory.unsupported
        if not (found or unsupported or says_not_found(final)):
            unsupported = (Unsupported(final),)
        return Answer(
            text,
            final,
            found=found,
            evidence=_once_each(cite(final, known, question)),
            unsupported=unsupported,
            usage=usage_of(reply),
            finish_reason=finish_reason(reply),
        )

    async def _ask(
        self,
        prompt: str,
        config: RunnableConfig | None,
        options: dict[str, Any],
        seen: Sequence[dict[str, Any]] = (),
        after: Sequence[BaseMessage] = (),
    ) -> tuple[AIMessage, str]:
        content: Any = [{"type": "text", "text": prompt}, *seen] if seen else prompt
        messages: list[BaseMessage] = [HumanMessage(content), *after]
        asked = (
            ask_like_caller(self.model, messages, config, options)
            if self.standing  # the application asks the same model
            else self.model.ainvoke(messages, config, **options)
        )
        return await take_reply(asked, prompt)


def _once_each(places: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return places without those that a note and a passage of the answer share."""
    found: dict[tuple[int, int], Evidence] = {}
    for one in places:
        found.setdefault((one.start, one.end), one)
    return (*found.values(),)


def _without_seen(memory: Memory, shown: Sequence[Sight]) -> Memory:
    """Return a memory in which what refers to a picture that was shown counts as supported."""
    if not (shown and memory.unsupported):
        return memory
    numbers = {one.picture.number for one in shown}
    left = (item for item in memory.unsupported if not numbers.intersection(numbers_in(item.text)))
    return replace(memory, unsupported=tuple(left))


def _leaves(plain: object) -> Iterator[str]:
    """The texts and numbers in a structured answer."""
    if isinstance(plain, dict):
        plain = [*plain.values()]
    if isinstance(plain, list):
        for part in plain:
            yield from _leaves(part)
    elif plain is not None and not isinstance(plain, bool):
        yield str(plain)


def unheard(
    config: RunnableConfig | None, handler: BaseCallbackHandler | None = None
) -> RunnableConfig:
    """The config for calls that `stream_mode="messages"` should not show; `handler` sees them."""
    config = ensure_config(config)
    if handler is not None:
        config = merge_configs(config, {"callbacks": [handler]})
    return {**config, "tags": [*config["tags"], TAG_NOSTREAM]}


def prompts_for(model: BaseChatModel, config: ReadingConfig) -> Prompts:
    """Return the default prompts for a model of its size, as its name or its server says it."""
    names = model_name(model), getattr(model, "served_name", "")
    return default_prompts(*names, exact=config.exact_cuts)


def model_name(model: BaseChatModel) -> str:
    """Return the name of a chat model, or else that of its class."""
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return str(name) if name else type(model).__name__


def _identity(model: BaseChatModel) -> dict[str, object]:
    """The settings that tell two models apart: LangChain's own, the endpoint and the revision."""
    identity = dict(find_identifying_params(model))
    for key in ("base_url", "openai_api_base", "revision", "seed", "temperature", "top_p"):
        if (value := getattr(model, key, None)) is not None:
            identity[key] = value
    return {key: value for key, value in identity.items() if "key" not in key.lower()}


def _limit(model: BaseChatModel, tokens: int) -> dict[str, Any]:
    """The option that limits a reply, if the model has one and no limit is set on it yet."""
    own = "max_tokens" in model.model_fields_set and getattr(model, "max_tokens", None) is not None
    limited = "max_tokens" in type(model).model_fields and not own
    return {"max_tokens": tokens} if limited else {}
