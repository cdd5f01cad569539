"""An exam of thirty small tasks: whether a model can read, and which settings suit it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage

from memagent_graph.config import ReadingConfig
from memagent_graph.conversation.built_in import read_remarks
from memagent_graph.conversation.messages import ConversationSource
from memagent_graph.conversation.reader import STANDING_QUESTION, NotesReader, resolve_keeper
from memagent_graph.errors import (
    ContextLengthError,
    EmptyReplyError,
    RefusalError,
    ResponseFormatError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.reading import repeat
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

_CONFIG = ReadingConfig(memory_tokens=200, answer_tokens=100)
_LENGTHS = {250: 12, 1000: 50, 4000: 200}
"""Lengths of chunks in tokens, and the number of sentences around the fact."""
_PASSED = 0.7
"""Share of the tasks on notes and answers from which a model reads well enough."""


@dataclass(frozen=True, slots=True)
class ExamTask:
    """One task: a section to read with its notes; without a section, notes to merge or to answer.

    The reply must have all that it `wants`, case aside. If it is `gated`, it may say that nothing
    is new, and should where it `takes` that way out. The section of a task of length has about so
    many `tokens`.
    """

    skill: str
    question: str
    chunk: str = ""
    notes: tuple[str, ...] = ("",)
    wants: tuple[str, ...] = ()
    gated: bool = False
    takes: bool = False
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ExamMark:
    """A task, whether it was solved, and what the model replied, or why there is nothing."""

    task: ExamTask
    right: bool
    reply: str


@dataclass(frozen=True, slots=True)
class ExamReport:
    """The marks of an exam in the order of its tasks, and what follows from them.

    The `settings` are the fields of `ReadingConfig` that suit the model, where they differ from the
    default. The model `reads` well enough to be used at all, and `keeps` the memory of a
    conversation: it notes what a user says of themselves, and nothing else.
    """

    marks: tuple[ExamMark, ...]
    settings: dict[str, Any]
    reads: bool
    keeps: bool

    @property
    def table(self) -> dict[str, tuple[int, int]]:
        """Solved tasks, and all tasks, of each skill."""
        found: dict[str, tuple[int, int]] = {}
        for mark in self.marks:
            right, count = found.get(mark.task.skill, (0, 0))
            found[mark.task.skill] = (right + mark.right, count + 1)
        return found


_WHO, _KEEPER = "Who keeps the lighthouse of Skarvik?", "Ragna Solheim"
_TOWER = f"The tower of the lighthouse of Skarvik still has a keeper, whose name is {_KEEPER}."
_RENT, _LEASE = "What is the rent of the mill?", "The rent of the mill is 900 euros a month."
_BREAD = "Bread is baked twice a week by the brothers Aune, who sell it from a van at the pier."
_FILM = "In which city does the director of The Glass Harbour live?"
_DIRECTOR = "The Glass Harbour was directed by Ilse Varga."
_STORM = (
    "In the winter of 2003 a storm took the roof of the boathouse. A lottery paid for a new one."
)


def _among(sentences: int, fact: str) -> str:
    days = [
        f"On day {number} the ferry carried {number * 7 % 50 + 3} people and {number % 9} cars."
        for number in range(1, sentences + 1)
    ]
    days.insert(sentences // 2, fact)
    return " ".join(days)


TASKS = (
    ExamTask("notes", _WHO, f"{_BREAD} {_TOWER}", wants=(_KEEPER,)),
    ExamTask("notes", _RENT, f"{_LEASE} {_STORM}", wants=("900",)),
    ExamTask(
        "notes", "When was the bell cast?", f"The bell was cast in 1702. {_BREAD}", wants=("1702",)
    ),
    ExamTask(
        "notes", "Who won the boat?", f"{_STORM} The boat was won by Dr. Lund.", wants=("Lund",)
    ),
    *(
        ExamTask("length", _WHO, _among(count, _TOWER), wants=(_KEEPER,), tokens=tokens)
        for tokens, count in _LENGTHS.items()
    ),
    ExamTask("nothing new", _WHO, _BREAD, (_TOWER,), (_KEEPER,)),
    ExamTask("nothing new", _RENT, _STORM, (_LEASE,), ("900",)),
    ExamTask(
        "conflict", _RENT, "Since May the rent of the mill is 950 euros.", (_LEASE,), ("950",)
    ),
    ExamTask(
        "conflict",
        _WHO,
        "In June Bo Tern became keeper of the lighthouse of Skarvik.",
        (_TOWER,),
        ("Tern",),
    ),
    ExamTask(
        "second hop",
        _FILM,
        "Ilse Varga has a house in Trieste.",
        (_DIRECTOR,),
        ("Trieste", "Varga"),
    ),
    ExamTask(
        "second hop",
        "How old is the owner of the mill?",
        "Tom Reiner is 61 years old.",
        ("The mill belongs to Tom Reiner.",),
        ("61",),
    ),
    ExamTask("update gate", _WHO, _BREAD, (_TOWER,), gated=True, takes=True),
    ExamTask("update gate", _RENT, _STORM, gated=True, takes=True),
    ExamTask("update gate", _WHO, _TOWER, wants=(_KEEPER,), gated=True),
    ExamTask("update gate", _RENT, _LEASE, (_STORM,), ("900",), gated=True),
    ExamTask("merge", _FILM, "", (_DIRECTOR, "Ilse Varga lives in Trieste."), ("Varga", "Trieste")),
    ExamTask("merge", _RENT, "", (_BREAD, _LEASE), ("900",)),
    ExamTask("answer", _WHO, "", (_TOWER,), (_KEEPER,)),
    ExamTask("answer", _RENT, "", (_LEASE,), ("900",)),
    ExamTask("not in the text", _WHO, "", (_BREAD,)),
    ExamTask("not in the text", _RENT, "", ("The mill was built in 1850 and sold in 1911.",)),
    ExamTask("structure", _RENT, "", (_LEASE,), ("900",)),
    ExamTask(
        "language",
        _WHO,
        f"Der Leuchtturm von Skarvik hat noch eine Wärterin: {_KEEPER}.",
        wants=(_KEEPER,),
    ),
    ExamTask("conversation", "", "My sister Edda breeds goats in Husum.", wants=("Edda", "Husum")),
    ExamTask("conversation", "", "Ich vertrage keine Erdnüsse.", wants=("rdnüss",)),
    ExamTask("conversation", "", "Good morning!"),
    ExamTask("conversation", "", "What is the capital of Peru?"),
    ExamTask("language", _RENT, "磨坊的租金是每月900欧元。面包每周烤两次。", wants=("900",)),
)


async def examine(model: BaseChatModel) -> ExamReport:
    """Give any LangChain chat model all tasks, as many at once as it answers.

    A call that fails for another reason than the reply is a `ModelError`.
    """
    plain = ChatReader(model, config=_CONFIG)
    shaped = ChatReader(model, config=_CONFIG, response_format=_Rent)
    for reader in (plain, shaped):
        await reader.prepare()
    turns = asyncio.Semaphore(plain.concurrency)

    async def mark(task: ExamTask) -> ExamMark:
        async with turns:
            reader = shaped if task.skill == "structure" else plain
            return await repeat(lambda _: _mark(reader, task), _CONFIG)

    marks = tuple(await asyncio.gather(*map(mark, TASKS)))
    return _report(marks, plain.identity.window_tokens)


@dataclass
class _Rent:
    euros: int


async def _mark(reader: ChatReader, task: ExamTask) -> ExamMark:
    """Give one task; a reply that cannot be used is wrong."""
    try:
        reply, taken = await _ask(reader, task)
    except (ContextLengthError, EmptyReplyError, RefusalError, ResponseFormatError) as error:
        return ExamMark(task, right=False, reply=str(error))
    said = reply.casefold()
    strict = task.skill != "conversation" or not task.wants
    right = all(want.casefold() in said for want in task.wants) and (
        taken is task.takes or not strict
    )
    return ExamMark(task, bool(right), reply)


async def _ask(reader: ChatReader, task: ExamTask) -> tuple[str, bool]:
    """Return the notes or the answer, and whether the way out was taken that was offered."""
    if task.skill == "merge":
        merged = await reader.merge(task.question, [*map(Memory, task.notes)])
        return merged.memory.text, False
    if task.skill == "conversation":
        return await _talk(reader.model, task.chunk)
    notes = Memory(task.notes[0])
    if not task.chunk:
        answer = await reader.respond(task.question, notes)
        denies = task.skill == "not in the text" and answer.found is not False
        return answer.final, denies
    chunk = Chunk(task.chunk, 0, len(task.chunk), task.tokens, TextSource(task.chunk))
    asked = task.question
    step = Step(asked, notes, chunk, number=2, update_gate=task.gated)
    memory = (await reader.update(step)).memory
    return (memory or notes).text, task.gated and memory is None


async def _talk(model: BaseChatModel, said: str) -> tuple[str, bool]:
    """Return the notes on a user, and whether they have a word that is not the user's."""
    keeper = resolve_keeper(model, config=_CONFIG)
    reader = keeper.for_one_fold(None, None, {}) if isinstance(keeper, NotesReader) else keeper
    source = ConversationSource([HumanMessage(said, id="1"), AIMessage("I see.", id="2")])
    chunk = Chunk(source.read(0, source.length), 0, source.length, 40, source)
    step = Step(STANDING_QUESTION, Memory(""), chunk, number=1, update_gate=True)
    memory = (await reader.update(step)).memory
    if getattr(reader, "warnings", ()):  # it has quoted the user itself
        return "", False
    lines = [] if memory is None else [one.text for one in read_remarks(memory.text)]
    text = "\n".join(lines)
    told = " ".join(line.partition(": ")[2] or line for line in lines)  # without its day
    return text, not {*specific_terms(told)} <= {*specific_terms(said), "user", "say"}


def _report(marks: tuple[ExamMark, ...], window: int | None) -> ExamReport:
    table = ExamReport(marks, {}, reads=False, keeps=False).table
    lengths = [mark.task.tokens for mark in marks if mark.task.skill == "length" and mark.right]
    longest = max(lengths, default=0)
    settings: dict[str, Any] = {}
    if longest < max(_LENGTHS):
        chunk = longest or min(_LENGTHS)
        settings |= {"chunk_tokens": chunk, "memory_tokens": max(128, min(1024, chunk // 2))}
    elif window is not None and window < ReadingConfig().window_tokens:
        settings["chunk_tokens"] = max(window - ReadingConfig(chunk_tokens=1).window_tokens, 250)
    basic = [mark.right for mark in marks if mark.task.skill in {"notes", "nothing new", "answer"}]
    reads = sum(basic) >= _PASSED * len(basic)
    right, count = table["update gate"]
    if reads and 2 * right >= count:  # a reading notices a gate that is closed too often
        settings["update_gate"] = True
    solved = {skill: right == count for skill, (right, count) in table.items()}
    if not solved["not in the text"]:
        settings["unsupported"] = "drop"
    return ExamReport(marks, settings, reads, solved["conversation"])
