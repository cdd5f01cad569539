"""Ways to ask long documents questions, side by side: what people would use instead, and ours.

All of them ask one scripted server, on a clock that jumps (`virtual_clock.py`). It takes time as a
real one does: so many seconds for a token that is read and not in its prefix cache, one prompt
after another, and so many for a token that is written; it takes so many calls at once. Its model
finds what is asked for wherever it stands in the prompt, and writes as much as one is asked to.

- MemAgent: the loop of the paper's evaluation, written here after its description.
- refine, map-reduce: as the LangChain documentation builds them, a chain of calls or one for each
  part and merges of what fits, written here.
- RLM: its own loop and session of Python, if `rlm` can be imported. Its root model replies with the
  obvious program, which is ours: look at the text, ask a model about each part, combine. Questions
  wait for each other, since a session has the folder and the output of its process.
- LlamaIndex: its own refine, if `llama_index.core` can be imported.
- ours: as published, skim, segments; several questions are asked at once.

    python benchmarks/peers.py [--tokens N --questions N] [--only NAME]

Each row is measured in a process of its own: seconds on the jumping clock; calls; tokens read and
written; processor time of the client, without that of the scripted server; right answers that came.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import virtual_clock
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from measurement import print_head, print_row

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from concurrent.futures import Future

    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun

TOKENS = EstimatingTokenizer()
CHUNK, NOTES = 5_000, 1_024
"""Tokens of a chunk, and of notes, for everyone."""
BLOCK = 64
"""Code points of a block of the prefix cache: about 16 tokens."""
WRITTEN = 150
"""Tokens that the model writes when it is asked for notes or a summary."""
VAULTS = [f"Kestrel{number}" for number in range(16)]


class Timing(NamedTuple):
    """How long the server takes: tokens a second, and calls at once."""

    read: float
    write: float
    slots: int
    cached: int = 200_000


class Server:
    """The scripted server, with what it was asked for."""

    def __init__(self, timing: Timing, script: Callable[[str], str] | None = None) -> None:
        self.timing, self._script = timing, script or answer
        self.calls = self.read = self.wrote = 0
        self.own = 0.0
        self.alone = asyncio.Lock()
        self._slots = asyncio.Semaphore(timing.slots)
        self._reading = asyncio.Lock()
        self._cache: OrderedDict[int, None] = OrderedDict()

    async def complete(self, prompt: str) -> tuple[str, int, int]:
        """The reply to a prompt, and the tokens of both."""
        began = time.process_time()
        self.calls += 1
        tokens, reply = TOKENS.count(prompt), self._script(prompt)
        written = TOKENS.count(reply)
        self.own += time.process_time() - began
        async with self._slots:
            async with self._reading:
                began = time.process_time()
                hits = int(tokens * self._known(prompt))
                self.own += time.process_time() - began
                await asyncio.sleep((tokens - hits) / self.timing.read)
            await asyncio.sleep(written / self.timing.write)
        self.read, self.wrote = self.read + tokens, self.wrote + written
        return reply, tokens, written

    async def reply(self, prompt: str) -> str:
        return (await self.complete(prompt))[0]

    def from_thread(self, prompt: str, loop: virtual_clock.VirtualClock) -> Future[str]:
        """As `reply`, for a thread that is not the loop's."""

        async def reply() -> str:
            with loop.serve_thread():
                return await self.reply(prompt)

        return asyncio.run_coroutine_threadsafe(reply(), loop)

    def _known(self, prompt: str) -> float:
        """Share of a prompt that begins as an earlier one; all of it is known from now on."""
        key, known, at = 0, 0, 0
        for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
            key = hash((key, prompt[at : at + BLOCK]))
            if known == at and key in self._cache:
                known = at + BLOCK
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) * 16 > self.timing.cached:
            self._cache.popitem(last=False)
        return known / max(len(prompt), 1)


_ASKED = re.compile(r"code of the (\w+) vault\?")
_FACT = re.compile(r"The access code of the (\w+) vault is ([\d-]+)\.")
_LONG = re.compile(r"notes that you took|Put the final answer|final answer", re.IGNORECASE)
ROOT = "You are a Recursive Language Model"
"""How the prompts of RLM's root model begin."""
PROGRAM = [
    "```repl\nprint(len(context), context[:300])\n```",
    """```repl
parts = [""]
for line in context.splitlines(keepends=True):
    if len(parts[-1]) + len(line) > SIZE:
        parts.append("")
    parts[-1] += line
asked = "Give the final answer, or say that this part does not have it. QUESTION\\n\\n"
found = llm_query_batched([asked + part for part in parts])
found = [one for one in found if "do not say" not in one]
reply = llm_query("Combine these into the final answer. QUESTION\\n\\n" + "\\n".join(found))
print(reply)
```""",
    '```repl\nanswer["content"] = reply\nanswer["ready"] = True\n```',
]
"""Its replies: it looks at the text, asks about each part, and submits."""
_FILLER = "Nothing else in this part bears on what is asked. " * (WRITTEN // 11)


def answer(prompt: str) -> str:
    """All facts in the prompt about the vaults that it asks for; for notes, with more around."""
    asked = {*_ASKED.findall(prompt)}
    found = {name: code for name, code in _FACT.findall(prompt) if name in asked}
    facts = " ".join(f"The access code of the {name} vault is {found[name]}." for name in found)
    if ROOT in prompt:
        (name,) = asked
        program = PROGRAM[min(prompt.count("\nTurn "), len(PROGRAM)) - 1]
        return program.replace("QUESTION", f"What is the access code of the {name} vault?")
    if _LONG.search(prompt):
        return facts or "The notes do not say."
    return f"{facts} {_FILLER}"


class Model(BaseChatModel):
    """The server as a chat model of LangChain, without repeats of its own."""

    server: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        prompt = "\n".join(str(message.content) for message in messages)
        reply, read, wrote = await self.server.complete(prompt)
        used = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
        message = AIMessage(reply, usage_metadata=used, response_metadata={"finish_reason": "stop"})
        return ChatResult(generations=[ChatGeneration(message=message)])


def cut(document: str, size: int = CHUNK) -> list[str]:
    found = chunks(TextSource(document), tokenizer=TOKENS, chunk_tokens=size)
    return [chunk.text for chunk in found]


async def memagent(server: Server, document: str, questions: list[str]) -> list[str]:
    """The loop of the paper: chunks one after another, and the answer from the memory alone."""
    parts = cut(document)

    async def read(question: str) -> str:
        memory = "No previous memory"
        for part in parts:
            memory = await server.reply(
                "You are presented with a problem, a section of an article that may contain the "
                "answer to the problem, and a previous memory. Update the memory with what helps.\n"
                f"<problem>{question}</problem>\n<memory>{memory}</memory>\n"
                f"<section>{part}</section>\nUpdated memory:"
            )
        return await server.reply(
            "Solve the problem from the memory. Put the final answer in \\boxed{}.\n"
            f"<problem>{question}</problem>\n<memory>{memory}</memory>"
        )

    return await every(read, questions)


async def refine(server: Server, document: str, questions: list[str]) -> list[str]:
    """LangChain's refine: a first answer, improved by each part in turn."""
    first, *rest = cut(document)

    async def read(question: str) -> str:
        known = await server.reply(f"Write a summary for: {question}\n\n{first}")
        for part in rest:
            known = await server.reply(
                f"Question: {question}\nExisting summary up to this point: {known}\n"
                f"Refine it with the new context, if needed:\n------------\n{part}\n------------"
            )
        return known

    return await every(read, questions)


async def map_reduce(server: Server, document: str, questions: list[str]) -> list[str]:
    """LangChain's map-reduce: each part by itself, then merges of as many as fit, to the answer."""
    parts = cut(document)

    async def read(question: str) -> str:
        found = await every(
            lambda part: server.reply(f"Write a summary for: {question}\n\n{part}"), parts
        )
        while len(found) > 1:
            groups, size = [[]], 0  # type: list[list[str]], int
            for text in found:
                if size + (own := TOKENS.count(text)) > CHUNK and groups[-1]:
                    groups.append([])
                    size = 0
                groups[-1].append(text)
                size += own
            is_last = len(groups) == 1
            found = await every(
                lambda group, is_last=is_last: server.reply(
                    f"Distill these summaries into {'a final answer' if is_last else 'one'} for: "
                    f"{question}\n\n" + "\n".join(group)
                ),
                groups,
            )
        return found[0]

    return await every(read, questions)


async def llama_index(server: Server, document: str, questions: list[str]) -> list[str]:
    """LlamaIndex's refine."""
    from llama_index_model import refine

    parts, sizes = cut(document, CHUNK // 5), {"window": CHUNK + 2 * NOTES, "reply": NOTES}
    model = Model(server=server)
    return await every(
        lambda question: refine(model, question, parts, TOKENS.count, **sizes), questions
    )


async def rlm(server: Server, document: str, questions: list[str]) -> list[str]:
    """RLM, which cuts the text into parts of about a chunk."""
    from rlm import RLM
    from rlm.clients.base_lm import BaseLM
    from rlm.core import rlm as core
    from rlm.core.types import ModelUsageSummary, UsageSummary

    loop = asyncio.get_running_loop()
    assert isinstance(loop, virtual_clock.VirtualClock)
    loop.patience = 0.01

    class Scripted(BaseLM):
        def completion(self, prompt: Any) -> str:
            reply = server.from_thread(self._fill(prompt), loop).result()
            return reply.replace("SIZE", str(4 * CHUNK))

        async def acompletion(self, prompt: Any) -> str:
            return await asyncio.wrap_future(server.from_thread(self._fill(prompt), loop))

        def get_usage_summary(self) -> UsageSummary:
            return UsageSummary({})

        def get_last_usage(self) -> ModelUsageSummary:
            return ModelUsageSummary(0, 0, 0)

        def _fill(self, prompt: Any) -> str:
            if isinstance(prompt, str):
                return prompt
            return "\n".join(f"\n{message['content']}" for message in prompt)

    core.get_client = lambda *_: Scripted("scripted")

    def read(question: str) -> str:
        return str(RLM().completion(document, root_prompt=question).response)

    async def one(question: str) -> str:
        async with server.alone:
            return await asyncio.to_thread(read, question)

    return await every(one, questions)


def ours(**settings: Any) -> Any:
    """This library, as configured."""

    async def ask(server: Server, document: str, questions: list[str]) -> list[str]:
        config = ReadingConfig(chunk_tokens=CHUNK, memory_tokens=NOTES, **settings)
        agent = create_memagent(Model(server=server), config=config)
        if len(questions) == 1:
            out = await agent.ainvoke({"question": questions[0], "document": document})
            return [out["answer"] or ""]
        out = await agent.ainvoke({"questions": questions, "document": document})
        return [one["answer"] or "" for one in out["answers"]]

    return ask


async def every(work: Callable[[Any], Awaitable[str]], things: list[Any]) -> list[str]:
    return await asyncio.gather(*map(work, things))


WAYS: dict[str, Any] = {
    "MemAgent's loop": memagent,
    "LangChain refine": refine,
    "LangChain map-reduce": map_reduce,
    "LlamaIndex refine": llama_index,
    "RLM, parts as the others'": rlm,
    "ours, as published": ours(),
    "ours, skim": ours(skim="lexical"),
    "ours, 8 segments": ours(segments=8),
}
TIMING = Timing(read=43.0, write=15.0, slots=4)
CASES = [(128_000, 16), (1_000_000, 1)]
"""Tokens of the document, and questions."""


def make_document(tokens: int) -> tuple[str, dict[str, str]]:
    """A text with a code for each vault, and the codes."""
    drawn = random.Random(0)
    syllables = [one + other for one in "bdfgklmnprstv" for other in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=drawn.randrange(1, 4))) for _ in range(400)]
    lines: list[str] = []
    size = 0
    while size < tokens:
        line = " ".join(drawn.choices(words, k=drawn.randrange(8, 20))).capitalize() + "."
        lines.append(line)
        size += TOKENS.count(line)
    codes = {name: f"{drawn.randrange(100)}-{drawn.randrange(100)}" for name in VAULTS}
    for name, code in codes.items():
        fact = f"The access code of the {name} vault is {code}."
        lines.insert(drawn.randrange(len(lines)), fact)
    text = "\n".join(" ".join(lines[at : at + 5]) + "\n" for at in range(0, len(lines), 5))
    return text, codes


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    text, codes = make_document(options.tokens)
    small, _ = make_document(6_000)
    asked = VAULTS[: options.questions]
    questions = [f"What is the access code of the {name} vault?" for name in asked]

    async def work() -> tuple[Server, list[str]]:
        server = Server(TIMING)
        return server, await WAYS[way](server, text, questions)

    virtual_clock.run(WAYS[way](Server(TIMING), small, questions[:1]))  # warms up
    began = time.process_time()
    (server, answers), seconds = virtual_clock.run(work())
    spent = time.process_time() - began - server.own
    right = zip(asked, answers, strict=True)
    return {
        "seconds": f"{seconds:,.0f}",
        "calls": f"{server.calls:,}",
        "tokens read": f"{server.read:,}",
        "written": f"{server.wrote:,}",
        "processor, s": f"{spent:.2f}",
        "came": str(sum(f" {codes[name]}" in f" {answer}" for name, answer in right)),
    }


def rows(ways: Iterable[str], file: str, options: argparse.Namespace) -> None:
    """Print a table: a row for each way, measured by `file` in a process of its own."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    flags = [f"--{name}={value}" for name, value in given.items() if name != "only"]
    for number, way in enumerate(options.only or ways):
        command = [sys.executable, file, *flags, "--row", way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print_row(way, done.stderr.strip().splitlines()[-1][:90])
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        if not number:
            print_head("", *found)
        print_row(way, *found.values())


def arguments(about: str) -> argparse.ArgumentParser:
    """The arguments of both benchmarks."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--only", action="append", help="name of a way")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, help="of the document; as published by default")
    parser.add_argument("--questions", type=int, default=1)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options)))
        return
    cases = [(options.tokens, options.questions)] if options.tokens else CASES
    for options.tokens, options.questions in cases:
        print(f"\n{options.tokens:,} tokens, {options.questions} questions\n")
        rows(WAYS, __file__, options)


if __name__ == "__main__":
    main()
