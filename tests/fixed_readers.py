"""Readers, and a model, whose every step a test can predict; for tests of our control flow."""

import asyncio
import hashlib
import re
from pathlib import Path
from threading import Lock

from langgraph.store.memory import InMemoryStore

from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.readers.chat import ChatReader
from memagent_graph.testing import ScriptedChatModel


class ChainReader(Reader):
    """Its memory is a hash over all chunks in order, so that a lost, repeated or swapped chunk
    shows; its answer is the memory.

    Args:
        delay: seconds that an update takes.
        log: file that gets a line for each update, with the chunk's span.
    """

    identity = Identity("chain", "chain-1")

    def __init__(self, delay: float = 0.0, log: Path | None = None) -> None:
        self.delay = delay
        self.log = log
        self.spans: list[tuple[int, int]] = []
        self.merges: list[int] = []
        self.answers = 0

    async def update(self, step, *, config=None):
        chunk = step.chunk
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{chunk.start} {chunk.end}\n")
        self.spans.append((chunk.start, chunk.end))
        if self.delay:
            await asyncio.sleep(self.delay)
        usage = Usage(calls=1, input_tokens=chunk.tokens, output_tokens=1)
        return Update(Memory(chain(step.memory.text, chunk.text)), usage=usage)

    async def merge(self, question, memories, *, config=None):
        self.merges.append(len(memories))
        return Merge(Memory(chain("merge", "".join(memory.text for memory in memories))))

    async def respond(self, question, memory, *, config=None):
        self.answers += 1
        text = memory.text or "nothing was read"
        return Answer(text, text, usage=Usage(calls=1, input_tokens=1, output_tokens=1))


class Watched(ChainReader):
    """Knows how many updates run at once, and fails where it is told to.

    Args:
        fails: from a step to an error, or None.
        together: updates that are waited for until so many have run at once: a machine with other
            work to do may begin the last only when the first would have ended.
    """

    def __init__(self, fails=lambda step: None, *, together=1, **options):
        super().__init__(**options)
        self.fails, self.together, self.lock = fails, together, Lock()
        self.running = self.most = 0

    async def update(self, step, *, config=None):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            while self.most < self.together:  # noqa: ASYNC110 - several event loops can call
                await asyncio.sleep(0.001)
            if error := self.fails(step):
                raise error
            return await self.read(step)
        finally:
            with self.lock:
                self.running -= 1

    async def read(self, step):
        return await super().update(step)


class QuotingReader(Reader):
    """Keeps the first line of each chunk, newest last, with its place; forgets the oldest."""

    identity = Identity("quoting", "quoting-1")

    def __init__(self, keep: int = 5) -> None:
        self.keep = keep

    async def update(self, step, *, config=None):
        chunk = step.chunk
        line = chunk.text.strip().splitlines()[0]
        start = chunk.start + chunk.text.index(line)
        place = chunk.source.locate(start)
        found = Evidence(line, place.name, place.line, start, start + len(line))
        kept = [*step.memory.text.splitlines(), line][-self.keep :]
        evidence = (*step.memory.evidence, found)[-self.keep :]
        return Update(Memory("\n".join(kept), evidence))

    async def respond(self, question, memory, *, config=None):
        last = memory.text.splitlines()[-1]
        return Answer(memory.text, last, evidence=memory.evidence[-1:])


class ScriptedReader(Reader):
    """Plays a list: a string is the next memory, an exception is raised, an update returned."""

    def __init__(self, *script, window_tokens: int | None = None) -> None:
        self.script = list(script)
        self.calls: list[str] = []
        self.identity = Identity("scripted", "scripted-1", window_tokens=window_tokens)

    async def update(self, step, *, config=None):
        self.calls.append(step.chunk.text)
        played = self.script.pop(0) if self.script else f"{step.memory.text}{step.chunk.text}"
        if isinstance(played, BaseException):
            raise played
        return played if isinstance(played, Update) else Update(Memory(played))

    async def respond(self, question, memory, *, config=None):
        return Answer(f"From memory: {memory.text}", memory.text)


def fact_model():
    """A chat model that writes the facts of simple sentences, and answers with all of its notes."""

    def reply(messages):
        text = messages[-1].text
        if shown := re.search(r"<(section|conversation)>(.*?)</\1>", text, re.DOTALL):
            return "\n".join(_state(shown[2])) or "unchanged"
        return rf"\boxed{{{text.partition('<notes>')[2].partition('</notes>')[0].strip()}}}"

    return ScriptedChatModel(reply)


def _state(shown):
    speaker, shown = "user", re.sub(r"\(instead of: '.*?'\) ", "", shown)
    for said in re.split(r"(?<=\.)\s|\n|(?<=\w: )", shown):
        speaker = name[1] if (name := re.search(r"(\w+): \Z", said)) else speaker
        if found := re.fullmatch(r"The (.+?) of (.+?) is (.+?)( (?:since|until) \d+)?\.", said):
            relation, subject, thing, time = found.groups()
            yield f"{subject} | {relation} | {thing} |{time or ''}"
        verbs = "lives? in|moved to|likes?|speaks?"
        if found := re.fullmatch(rf"(\w+) (no longer )?({verbs}) (.+)\.", said):
            name, ended, verb, thing = found.groups()
            relation = "lives in" if "in" in verb or "to" in verb else verb.rstrip("s") + "s"
            name = speaker if name == "I" else name
            yield f"{name} | {relation} | {thing}{' | ended' if ended else ''}"


class Words:
    """A token is a word with the space behind it."""

    name = "words"

    def count(self, text):
        return len(text.split())

    def prefix(self, text, tokens):
        ends = [found.end() for found in re.finditer(r"\S+\s*", text)]
        return ends[min(tokens, len(ends)) - 1] if ends else len(text)


class Once(ChatReader):
    """Asks once for each memory: a model of random weights never ends a reply by itself."""

    shortens = False


def chain(memory: str, text: str) -> str:
    return hashlib.sha256((memory + text).encode()).hexdigest()


def numbered(lines: int) -> str:
    """A document whose lines are all different, about ten tokens each."""
    return "".join(f"Line {number} says that {number * 7} is here.\n" for number in range(lines))


class Broken(InMemoryStore):
    """Fails from the call on that it is told."""

    away = False

    def batch(self, ops):
        if self.away:
            raise ConnectionError("gone")
        return super().batch(ops)

    async def abatch(self, ops):
        return self.batch(ops)
