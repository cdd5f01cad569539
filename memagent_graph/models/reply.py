"""Take a chat model's message: its text, how it ended, what it cost, and its stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import regex
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphBubbleUp

from memagent_graph.errors import EmptyReplyError, ModelError, RefusalError, TransientModelError
from memagent_graph.models.failures import model_error
from memagent_graph.sync import in_thread, is_shared_loop
from memagent_graph.text.chunks import last_sentence_end
from memagent_graph.text.terms import replace_surrogates
from memagent_graph.text.tokens import least_tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
    from langchain_core.runnables import RunnableConfig


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of model calls. `+` adds up two of them.

    Attributes:
        calls: model calls, including refused and repeated ones where they are known.
        input_tokens: prompt tokens.
        output_tokens: completion tokens.
        seconds: time spent waiting for the reader, in seconds.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
        )


def text_in(block: str | Mapping[str, object]) -> str | None:
    """Return the text of a block of a message's content: "" for a thought, None without text."""
    if isinstance(block, str):
        return block
    if block.get("thought"):  # Gemini
        return ""
    text = block.get("text")
    if isinstance(text, Mapping):  # OpenAI's Assistants
        text = text.get("value")
    return text if isinstance(text, str) else None


def text_of(reply: BaseMessage) -> str:
    """Return the text of a model's message, without blocks that are no text of the reply."""
    if isinstance(reply.content, str):
        return reply.content
    said = [b for b in reply.content if isinstance(b, str) or b.get("type") in _SPOKEN]
    return "".join(text_in(block) or "" for block in said)


_SPOKEN = {"text", "output_text"}
"""Types of the blocks that a model says; the latter is that of OpenAI's Responses."""

_REFUSED = re.compile(
    r"filter|safety|refus|block|prohibit|spii|recitation|guardrail|sensitive|toxic|moderat|violat"
    r"|censor|^risk|^language"
)
_CUT_OFF = re.compile(
    r"length|(?:^|_)max|limit|truncat|budget|context|not_finished|incomplete|(?:^|_)full(?:_|$)"
    r"|(?<!eos_)(?<!eot_)(?<!end_)(?<!stop_)(?<!special_)tokens?(?:_|$)"
)
_FAILED = re.compile(
    r"error|fail|abort|cancel|interrupt|time_?d?_?out|overload|unavailable|malformed|insufficient"
    r"|exception|terminat|deadline|kill|crash|preempt|disconnect|(?:^|_)lost|(?:^|_)oom|memory"
    r"|unexpected|^other"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def find_ending(finish_reason: str | None) -> Literal["cut off", "refused", "failed"] | None:
    """Return what a finish reason means if the reply is not whole; None if it is.

    Each provider has words of its own: "length", "max_tokens" (Anthropic), "token_limit" (watsonx);
    "content_filter", "RECITATION" (Gemini), "guardrail_intervened" (Bedrock); "network_error"
    (Zhipu), "abort" (vLLM). Unknown words are understood by their parts; a reply is whole if none
    of them says otherwise.
    """
    if not finish_reason:
        return None
    words = re.sub(r"\W+", "_", _CAMEL.sub("_", finish_reason)).lower()
    if _REFUSED.search(words):
        return "refused"
    if "rate_limit" not in words and _CUT_OFF.search(words):
        return "cut off"
    return "failed" if "rate_limit" in words or _FAILED.search(words) else None


def count_of(value: object) -> int | None:
    """Return a number of tokens that a server reports, also as a float or a string; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if isfinite(number) and number >= 0 else None


OPENING = re.compile(r"<(think|thinking|reasoning)>")
CLOSING = re.compile(r"</(?:think|thinking|reasoning)>")
_QUOTES = frozenset("`'\"“”‘’«»()[]{}*_")
_AFTER_A_WORD = frozenset(" \t.,;:!?…)/-")


async def ask_like_caller(
    model: BaseChatModel,
    messages: list[BaseMessage],
    config: RunnableConfig | None,
    options: Mapping[str, Any],
) -> AIMessage:
    """Ask a model through the face that the caller of the library uses.

    A client keeps its asynchronous connections on the loop that opened them. If synchronous code
    opened them on the loop that the library runs for it, the application's own asynchronous calls
    of the same model would fail.
    """
    if not is_shared_loop():
        return await model.ainvoke(messages, config, **options)
    work = partial(copy_context().run, partial(model.invoke, messages, config, **options))
    return await asyncio.wrap_future(in_thread(work))


async def take_reply(replying: Awaitable[AIMessage], prompt: str = "") -> tuple[AIMessage, str]:
    """Await a reply, and return it with its text without reasoning.

    Args:
        replying: the call.
        prompt: the prompt, if it is to be compared with what the server says that it read.

    Raises:
        ModelError: The call failed, the reply has no text, the model or the provider's filter
            declined, or the server cut the prompt.
    """
    try:
        reply = await replying
    except GraphBubbleUp:  # an interrupt within the model is not a failure
        raise
    except Exception as error:
        raise model_error(error) from error
    _check_ending(reply)
    _check_prompt(reply, prompt)
    text = replace_surrogates(without_reasoning(text_of(reply)).strip())
    if not text:
        raise EmptyReplyError(
            "The model's reply was cut off while it was still thinking: give it room with "
            "max_tokens on the model, raise memory_tokens and answer_tokens, or turn its "
            "thinking off."
            if is_cut_off(reply)
            else "The model returned no text. Check its chat template and its limits."
        )
    return reply, text


def is_cut_off(reply: AIMessage) -> bool:
    """Whether a reply ended at its token limit."""
    return find_ending(finish_reason(reply)) == "cut off"


def whole_sentences(reply: AIMessage, text: str) -> str:
    """Return a reply's text; without its last sentence if that was cut off."""
    if not is_cut_off(reply):
        return text
    return text[: last_sentence_end(text)].rstrip() or text


_FINAL = "<|channel|>final<|message|>"
"""What begins the answer of a model that replies in channels (gpt-oss)."""
_THOUGHT = re.compile(
    r"\A[<\[◁][|｜]?(?:[a-z]+:)?(?:(?:begin|start)[_▁](?:of[_▁])?)?"
    r"(?P<word>think(?:ing)?|thoughts?|reason(?:ing)?|analysis|reflection|scratchpad"
    r"|inner[_ ]monologue)"
    r"[|｜]?[>\]▷]",
    re.IGNORECASE,
)
"""A mark that begins reasoning at the beginning of a reply, in the forms of all known families."""
_CHANNELS = (
    (re.compile(r"<\|channel\|>(?:analysis|commentary)<\|message\|>"), "<|end|>"),
    (re.compile(r"<\|channel>\s*(?:thought|analysis)\b"), "<channel|>"),  # Gemma
    (re.compile(r"Here is my thought process:"), "Here is my response:"),  # Granite
    (  # clients that show reasoning folded
        re.compile(
            r"<details\b(?:(?=[^>]*\stype=[\"']?reasoning)"
            r"|(?=[^>]*>\s*<summary>[^<]*\b(?:thought|thinking|reasoning)\b))[^>]*>",
            re.IGNORECASE,
        ),
        "</details>",
    ),
)
"""What else begins reasoning there, and what ends it."""
_BARE_CHANNELS = re.compile(
    r"\A(?:analysis|commentary)(?:.*assistantfinal|(?=[A-Z]).*\Z)", re.DOTALL
)
"""Reasoning in channels whose control tokens the server left out: "analysisShe may ..."."""
_HEAD = re.compile(
    r"\A\s*(?:(?:<\|(?:im_)?start\|>\s?assistant\b|<\|START_RESPONSE\|>|<\|begin_of_solution\|>"
    r"|<\|start_header_id\|>\s?assistant\s?<\|end_header_id\|>|<\|assistant\|>|\[/INST\]|<\|message\|>"
    r"|<start_of_turn>\s?model\b)\s*)*"
)
_TAIL = regex.compile(  # matched from the end
    r"(?r)(?:(?<![\s\"'`“‘(])(?:<[|｜](?:return|end|END_RESPONSE|end_of_solution|im_end|eot_id|eom_id|endoftext"
    r"|end▁of▁sentence|end_of_text|eos|END_OF_TURN_TOKEN)[|｜]>|</s>|<eos>|<end_of_turn>|\[EOS\])\s*)*\Z"
)
"""Control tokens around a reply that some servers leave in it."""


def _without_channels(text: str) -> str:
    """The reply without control tokens around it, and the reasoning that it begins with."""
    _, final, answer = text.rpartition(_FINAL)
    text = _BARE_CHANNELS.sub("", _without_marks(answer if final else text))
    while closed := _end_of_thought(text):
        text = _without_marks(text[closed:])
    return text


def _end_of_thought(text: str) -> int:
    """Where the reasoning that a reply begins with ends; 0 if it begins with none."""
    for opening, closing in _CHANNELS:
        if opening.match(text):
            at = text.find(closing)
            return len(text) if at < 0 else at + len(closing)
    opened = _THOUGHT.match(text)
    if opened is None:
        return 0
    word, is_plain = re.escape(opened["word"]), OPENING.match(text)
    closing = rf"[<\[◁][|｜]?(?:/|(?:/?[a-z]+:)?end[_▁](?:of[_▁])?)(?:[a-z]+:)?{word}[|｜]?[>\]▷]"
    closing = rf"</{word}>" if is_plain else closing
    closed = re.compile(closing, re.IGNORECASE).search(text, opened.end())
    if closed is not None:
        return closed.end()
    # Nothing is left of reasoning that was cut off, but a tag may also be what is talked of.
    return len(text) if is_plain or word.casefold().startswith("th") else 0


def _without_marks(text: str) -> str:
    return str(_TAIL.sub("", _HEAD.sub("", text.rstrip()), 1))


def without_reasoning(text: str) -> str:
    """The reply without reasoning: closed, cut off, or opened by the chat template.

    Tags that the text merely names are part of the text; see `is_tag`.
    """
    text, kept, at = _without_channels(text), "", 0
    for opened in OPENING.finditer(text):
        before = kept + text[at : opened.start()]
        if opened.start() < at or not is_tag(text, opened, begins=not before.strip()):
            continue
        kept, closing = before, f"</{opened[1]}>"
        closed = text.find(closing, opened.end())
        at = len(text) if closed < 0 else closed + len(closing)
    return _without_head(kept + text[at:])


def is_tag(text: str, tag: re.Match[str], *, begins: bool = False) -> bool:
    """Return whether a tag marks reasoning, and is not merely named, as in "the <think> tag".

    A named tag is quoted, or stands in a line like a word. Nothing but space and reasoning is
    before a tag that `begins` a reply.
    """
    before, after = text[: tag.start()][-1:], text[tag.end() : tag.end() + 1]
    if begins or not before:
        return True
    closes = tag[0].startswith("</")
    if before in _QUOTES and not closes:
        return False
    if before not in _QUOTES and before not in " \t":
        return True
    if not after:
        return before in _QUOTES
    return after not in (_QUOTES if before in _QUOTES else _AFTER_A_WORD)


def _without_head(text: str) -> str:
    """A text without the reasoning that it begins with, if the chat template opened that."""
    named = OPENING.search(text)
    head = [
        closed.end()
        for closed in CLOSING.finditer(text, 0, named.start() if named else len(text))
        if is_tag(text, closed)
    ]
    return text[head[-1] :] if head else text


def _check_ending(reply: AIMessage) -> None:
    refusal = reply.additional_kwargs.get("refusal")
    for block in reply.content if isinstance(reply.content, list) else ():
        if isinstance(block, dict) and block.get("type") == "refusal":
            refusal = block.get("refusal") or "no reason given"
    ending = find_ending(finish_reason(reply))
    if refusal or ending == "refused":
        filtered = "The provider's content filter stopped the reply."
        raise RefusalError(f"The model declined: {refusal}" if refusal else filtered)
    if ending == "failed":
        message = f"The server broke off the reply ({finish_reason(reply)})."
        raise TransientModelError(message)


def _check_prompt(reply: AIMessage, prompt: str) -> None:
    """Raise an error if the server reports a prompt far shorter than the one it was sent.

    Ollama, for one, cuts a prompt that exceeds its context and answers as if it had read it all.
    """
    read = usage_of(reply).input_tokens
    if read < _SMALLEST_WINDOW or len(prompt) < read:
        return
    found: dict[str, Any] = {**(reply.usage_metadata or {})}
    read += (found.get("input_token_details") or {}).get("cache_read") or 0  # some leave it out
    least = least_tokens(prompt)
    if read < _CUT * least:
        message = (
            f"The server cut the prompt: it reports {read} tokens for one of at least {least}, so "
            "a part of the text was never read. Give the model a longer context (num_ctx of "
            "Ollama, --ctx-size of llama.cpp, --max-model-len of vLLM, --context-length of SGLang "
            "and LM Studio), or lower chunk_tokens."
        )
        raise ModelError(message)


def finish_reason(reply: AIMessage) -> str | None:
    """Return why a reply ended, in the provider's words; None if it does not say."""
    metadata = reply.response_metadata
    blocked = (metadata.get("prompt_feedback") or {}).get("block_reason")  # Gemini
    unfinished = (metadata.get("incomplete_details") or {}).get("reason")  # OpenAI's Responses
    named = [metadata.get(name) for name in _REASONS]
    found = next((value for value in (blocked, unfinished, *named) if value), None)
    return None if found is None else str(getattr(found, "name", found))


_REASONS = ("finish_reason", "stop_reason", "done_reason", "stopReason", "completionReason")
"""What providers call it."""


def usage_of(reply: AIMessage) -> Usage:
    """The cost of one call, with the token counts that the model reports, if any."""
    found: dict[str, Any] = {**(reply.usage_metadata or {})}
    metadata = reply.response_metadata
    # Some classes report it in the provider's words.
    for report in () if found else (metadata, *(metadata.get(name) for name in _REPORTS)):
        found |= report if isinstance(report, dict) else {}

    def first(names: Sequence[str]) -> int:
        counts = (count_of(found.get(name)) for name in names)
        return next((count for count in counts if count is not None), 0)

    return Usage(1, first(_READ), first(_WRITTEN))


_REPORTS = ("usage", "token_usage", "usage_metadata")
_READ = ("input_tokens", "prompt_tokens", "prompt_token_count", "prompt_eval_count", "inputTokens")
_WRITTEN = (
    "output_tokens",
    "completion_tokens",
    "candidates_token_count",
    "eval_count",
    "outputTokens",
)
"""What providers call the counts."""
_SMALLEST_WINDOW = 256
"""Tokens of the smallest context that a server is given. Smaller counts are no sign of a cut."""
_CUT = 0.9
"""Share of the least tokens of a prompt below which a server cut it."""


_BOX = "\\boxed{"


class Listener(BaseCallbackHandler):
    """A callback handler whose `hear` gets each piece of an answer, and whether it is the last.

    The pieces joined are the answer.
    """

    def __init__(self, hear: Callable[[str, bool], None]) -> None:
        self.hear = hear


def listener_of(config: RunnableConfig | None) -> Listener | None:
    """Return the listener among a config's callbacks; None if there is none."""
    handlers = getattr((config or {}).get("callbacks"), "handlers", ())
    return next((handler for handler in handlers if isinstance(handler, Listener)), None)


class AnswerRelay(BaseCallbackHandler):
    r"""Passes the answer in a model's reply on to a listener, token by token.

    The answer is `boxed` if the model was asked to put it into `\boxed{}`.
    """

    run_inline = True  # in the order of the tokens

    def __init__(self, listener: Listener, *, boxed: bool) -> None:
        self._listener = listener
        self._boxed = boxed
        self._reply = self._relayed = ""

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Pass on the part of the answer that is certain by now."""
        message = getattr(chunk, "message", None)
        said = str(token) if chunk is None else chunk.text
        self._reply += said if message is None else text_of(message)
        certain = certain_part(self._reply, boxed=self._boxed)
        piece = certain[len(self._relayed) :] if certain.startswith(self._relayed) else ""
        if piece:
            self._relayed += piece
            self._listener.hear(piece, False)  # noqa: FBT003 - the listener's signature

    def finish(self, final: str) -> None:
        """Pass on the rest of the whole answer."""
        self._listener.hear(final.removeprefix(self._relayed), True)  # noqa: FBT003 - likewise


def certain_part(reply: str, *, boxed: bool) -> str:
    r"""Return the part of an unfinished reply that is certain to be in the answer.

    White space at its end is left out. The answer is the content of `\boxed{}` if it is `boxed`, or
    else the reply without reasoning.
    """
    if boxed:
        text = certain_part(reply, boxed=False)
        return in_box(text, text.find(_BOX)).strip()
    text = _without_channels(reply)
    if _FINAL not in reply and _may_be_thought(text):
        return ""
    text = OPENING.split(text, maxsplit=1)[0]
    open_tag = text.rfind("<")
    tag = text[open_tag:] if open_tag >= 0 else ">"
    if ">" not in tag and not tag[1:2].isspace() and len(tag) < _LONGEST_MARK:
        text = text[:open_tag]
    return text.strip()


_LONGEST_MARK = 40
"""Characters of the longest mark of reasoning, or of control token."""
_BARE_HEADS = ("Here is my thought process:", "analysis", "commentary")


def _may_be_thought(text: str) -> bool:
    """Whether an unfinished reply begins with reasoning, or with what may become its mark."""
    if any(head.startswith(text) for head in _BARE_HEADS) or text.startswith("<|"):
        return True
    if text.startswith("<details") and "</summary>" not in text:
        return True
    is_open = len(text) < _LONGEST_MARK and {*text}.isdisjoint(">]▷")
    return (text[0] in "<[◁" and is_open) or _THOUGHT.match(text) is not None


def find_boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{...}`, braces balanced; without one, the text."""
    start = text.rfind(_BOX)
    return (text if start < 0 else in_box(text, start)).strip()


def in_box(reply: str, start: int) -> str:
    r"""Return what the `\boxed{...}` at `start` contains, braces balanced; of an open one, all."""
    if start < 0:
        return ""
    start += len(_BOX)
    depth = 1
    for offset, character in enumerate(reply[start:]):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return reply[start : start + offset]
    return reply[start:]
