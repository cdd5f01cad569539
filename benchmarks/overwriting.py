"""Ways in which a model overwrites its notes: readers for `benchmarks/local_models.py`.

Each takes the place of `ChatReader`, which asks for the whole of the new notes. Where notes have
grown over their budget, all of them ask for shorter notes as `ChatReader` does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from memagent_graph import Prompts
from memagent_graph.evidence.align import align
from memagent_graph.evidence.statements import statements
from memagent_graph.prompts import ADD_PROMPT, UPDATE_PROMPT
from memagent_graph.readers.base import Update
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.completion import usage_of
from memagent_graph.templates import fill

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.readers.base import Step

_INTRO = ADD_PROMPT.partition("<section>")[0]
_HEAD = ADD_PROMPT.partition("\nWrite down")[0]
_NOTES = """
<notes>
{memory}
</notes>
"""
ADD = (
    _HEAD
    + _NOTES
    + """
Write what this section adds to the notes: one to three sentences, with names, dates and numbers, \
that help to answer the question or lead towards it. Do not repeat the notes.{out}
"""
)
NO_WAY_OUT = ADD.replace("{out}", " Write nothing else.")
ADD = ADD.replace("{out}", ' If it adds nothing, reply "none".')
EXTRACT = (
    _HEAD
    + """
Write down what this section says that helps to answer the question or leads towards it: one to \
three sentences, with names, dates and numbers. If it says nothing of the kind, reply "none".
"""
)
QUOTE = (
    _HEAD
    + """
Copy, word for word, the sentences of this section that help to answer the question or lead \
towards it, at most three, each in a line of its own. If there is none, reply "none".
"""
)
GUIDED = (
    _HEAD
    + """
<notes>
{memory}
</notes>

The notes say what earlier sections said. Write down what this section says that helps to answer \
the question, or tells more of a name in the notes: one to three sentences, with names, dates and \
numbers. If it says nothing of the kind, reply "none".
"""
)
EDIT = (
    _HEAD
    + """
These are the notes so far, one in a line, with numbers:

<notes>
{memory}
</notes>

Reply with changes to the notes, one in a line. "+ " and a sentence adds a note that helps to \
answer the question; "- " and a number strikes the note of that number, because the section shows \
that it is wrong. If there is nothing to change, reply "none".
"""
)
CHOOSE = (
    _INTRO
    + """\
These are the sentences of the section, with numbers:

<section>
{chunk}
</section>

<question>
{question}
</question>

Which sentences help to answer the question, or lead towards it? Reply with their numbers alone, \
the most helpful first, at most {most}, such as "4, 2". If none does, reply "0".
"""
)
_MOST = 4
_NONE = re.compile(r"\W*(?:none|nothing)\b", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.):])\s+")


def ordered(order: str) -> Prompts:
    """Return prompts with section (s), question (q) and notes (n) in this order, such as "nqs"."""
    start = UPDATE_PROMPT.index("<section>")
    end = UPDATE_PROMPT.index("Write the new notes. There is room")
    parts = {"s": ("section", "chunk"), "q": ("question", "question"), "n": ("notes", "memory")}
    shown = "".join(
        f"<{tag}>\n{{{field}}}\n</{tag}>\n\n" for tag, field in map(parts.__getitem__, order)
    )
    return Prompts(update=UPDATE_PROMPT[:start] + shown + UPDATE_PROMPT[end:])


class Adding(ChatReader):
    """Asks for what a chunk adds, and puts it behind the notes."""

    template = ADD

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        if step.shorter:
            return await super().update(step, config=config)
        reply, text = await self._ask(self.prompt(step), config, self._update_options)
        update = Update(None, usage=usage_of(reply))
        text = self.taken(step, text)
        if not text:
            return update
        memory = align(text, step.memory, step.chunk, step.question, step.recalled).memory
        return replace(update, memory=memory)

    def prompt(self, step: Step) -> str:
        """The prompt of a step."""
        values = {
            "chunk": step.chunk.shown,
            "question": step.question,
            "memory": step.memory.text or "(empty)",
        }
        return fill(self.template, values)

    def taken(self, step: Step, text: str) -> str:
        """The whole of the new notes; empty if they stay as they are."""
        added = self.checked(step, text)
        return "\n".join(filter(None, [step.memory.text, added])) if added else ""

    def checked(self, step: Step, text: str) -> str:
        """What a reply adds."""
        if not text or _NONE.match(text):
            return ""
        found = self._check(text, "", step.chunk.text, question=step.question)
        if found.unchanged or found.fault:
            return ""
        lines = [_BULLET.sub("", line).strip() for line in found.text.splitlines()]
        old = {line.strip() for line in step.memory.text.splitlines()}
        return "\n".join(line for line in dict.fromkeys(lines) if line and line not in old)


class Insisting(Adding):
    """Likewise, and does not offer that there is nothing."""

    template = NO_WAY_OUT


class Extracting(Adding):
    """Asks for what a chunk says, and then for both sets of notes as one, always or when needed."""

    template = EXTRACT
    always = True

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        if not (self.always or step.shorter):
            return await super().update(step, config=config)
        reply, text = await self._ask(self.prompt(step), config, self._update_options)
        usage, text = usage_of(reply), self.checked(step, text)
        if not text:
            return Update(None, usage=usage)
        if step.memory.text:
            prompt = self.prompts.for_merge(
                step.question, [step.memory.text, text], self._memory_tokens
            )
            reply, merged = await self._ask(prompt, config, self._update_options)
            usage += usage_of(reply)
            found = self._check(merged, step.memory.text, text, question=step.question)
            text = found.text if found.text and not found.fault else f"{step.memory.text}\n{text}"
        memory = align(text, step.memory, step.chunk, step.question, step.recalled).memory
        return Update(memory, usage=usage)


class Editing(Adding):
    """Asks for notes to add and to strike."""

    template = EDIT

    def prompt(self, step: Step) -> str:
        lines = [line for line in step.memory.text.splitlines() if line.strip()]
        numbered = "\n".join(f"{at}. {line}" for at, line in enumerate(lines, 1))
        values = {
            "chunk": step.chunk.shown,
            "question": step.question,
            "memory": numbered or "(empty)",
        }
        return fill(self.template, values)

    def taken(self, step: Step, text: str) -> str:
        lines = [line for line in step.memory.text.splitlines() if line.strip()]
        struck, added = set(), []
        for line in text.splitlines():
            if strike := re.match(r"\s*-\s*(\d+)\W*$", line):
                struck.add(int(strike[1]))
            elif add := re.match(r"\s*\+\s*(.+)", line):
                added.append(add[1])
        kept = [line for at, line in enumerate(lines, 1) if at not in struck]
        kept += self.checked(step, "\n".join(added)).splitlines()
        return "\n".join(kept) if kept != lines else ""


class Choosing(Adding):
    """Asks for the numbers of sentences, which become the notes as they stand."""

    template = CHOOSE

    def prompt(self, step: Step) -> str:
        numbered = "\n".join(f"{at}. {text}" for at, text in enumerate(self.sentences(step), 1))
        return fill(
            self.template, {"chunk": numbered, "question": step.question, "most": str(_MOST)}
        )

    @staticmethod
    def sentences(step: Step) -> list[str]:
        """The sentences of a chunk, each in one line."""
        return [" ".join(one.text.split()) for one in statements(step.chunk.text)]

    def taken(self, step: Step, text: str) -> str:
        sentences = self.sentences(step)
        numbers = dict.fromkeys(int(one) for one in re.findall(r"\d{1,4}", text)[:_MOST])
        chosen = [sentences[at - 1] for at in numbers if 0 < at <= len(sentences)]
        old = step.memory.text.splitlines()
        added = [line for line in chosen if line not in old]
        return "\n".join([*old, *added]) if added else ""


class Noting(Extracting):
    """Asks for what a chunk says without the notes; joins notes when they are over the budget."""

    always = False


class Quoting(Noting):
    """Likewise, for the sentences as they stand."""

    template = QUOTE


class Guided(Noting):
    """Likewise, with the notes shown behind the question."""

    template = GUIDED


class GuidedMerging(Extracting):
    """Always joins, and shows the notes."""

    template = GUIDED


PROMPTS = {
    "say": Prompts(update=ADD_PROMPT),
    "copy": Prompts(update=QUOTE.partition(" If there is none")[0] + "\n"),
}
"""Prompts of the library's own ways, by the first word of the way."""
READERS = {
    "rewrite": ChatReader,
    "add": Adding,
    "insist": Insisting,
    "extract and merge": Extracting,
    "edit": Editing,
    "choose": Choosing,
    "extract": Noting,
    "quote": Quoting,
    "guided": Guided,
    "guided and merge": GuidedMerging,
}
