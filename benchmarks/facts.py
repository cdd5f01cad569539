"""python benchmarks/facts.py [--model MODEL] [--dossiers N]: facts against notes, on contracts.

With `--out FILE`, each answer is a row of it, and a run that was stopped goes on there.

A dossier is a contract and its amendments, each a document of its own, read in order. A question
asks what holds on a date: a clause as it was at first (`past`), as it is now (`now`), one that a
later document says was written wrongly (`corrected`), or one that was ended (`ended`). Everything
is made from a seed. Without a model, a script reads: it takes down each sentence of its own form,
as notes word for word, or as facts. It answers in two ways: `careful` works out what held on the
date, `last` quotes the last line on the clause, as a small model tends to.

Ways: `notes` and `facts` read with a memory of BUDGET tokens; `add-only` keeps facts and closes
none; `whole` has all documents in its prompt. An answer is right if it has the clause's value, and
no other value that the clause ever had.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from intervals import in_percent
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.store.memory import InMemoryStore
from measurement import append_row, print_head, print_row, read_rows
from pydantic import create_model

from memagent_graph import Facts, Prompts, ReadingConfig, create_memagent
from memagent_graph.facts.record import read_fact
from memagent_graph.facts.rules import overwrite
from memagent_graph.models.reply import find_boxed
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.language_models import BaseChatModel

SEED = 41
CLAUSES = {
    "monthly rent": "{} euros",
    "deposit": "{} dollars",
    "notice period": "{} weeks",
    "interest rate": "{} percent",
    "parking fee": "{} francs",
    "insurance sum": "{} pounds",
    "cleaning allowance": "{} crowns",
    "heating advance": "{} kroner",
}
STANDING = f"What are the {', the '.join(CLAUSES)}, and since when and until when does each hold?"
"""As much as the schema says; a small model notes nothing for "each clause"."""
FILLER = (
    "Headings are for convenience and do not affect interpretation.",
    "Each party bears its own costs of negotiation.",
    "Notices are given in writing to the last known address.",
    "If a provision is void, the others remain in force.",
    "This document may be signed in counterparts.",
)


FIELDS = [clause.replace(" ", "_") for clause in CLAUSES]
Contract = create_model("Contract", **dict.fromkeys(FIELDS, (str, ...)))
AddOnly = create_model("AddOnly", **dict.fromkeys(FIELDS, (list[str], ...)))
"""The same, of which no fact closes another."""

WAYS: dict[str, Facts | None] = {
    "notes": None,
    "add-only": Facts(AddOnly),
    "facts": Facts(Contract),
}


class Question(NamedTuple):
    """A question: its kind, the right value, and all other values of the clause."""

    kind: str
    text: str
    right: str
    wrong: tuple[str, ...]


class Dossier(NamedTuple):
    """A contract with its amendments: their texts, and the line of a fact of each sentence."""

    documents: tuple[str, ...]
    questions: tuple[Question, ...]
    lines: dict[str, str]


def make_dossier(number: int) -> Dossier:
    """Make a dossier of eight clauses and three amendments, and eight questions about it."""
    pick = random.Random(f"{SEED} {number}")
    name = f"Lease {100 + number}"
    history: dict[str, list[tuple[int, str]]] = {}
    corrected: dict[str, str] = {}
    texts: list[str] = []
    lines: dict[str, str] = {}
    for clause, form in CLAUSES.items():
        value = form.format(pick.randrange(200, 900))
        history[clause] = [(2015, value)]
        texts.append(f"The {clause} of {name} is {value} since 1 January 2015.")
        lines[texts[-1]] = f"{name} | {clause} | {value} | since 2015-01-01"
    clauses = [*CLAUSES]
    pick.shuffle(clauses)
    wrong, gone, *others = clauses
    documents = [texts]
    for at in range(3):
        year = 2017 + 2 * at
        texts = []
        for clause in pick.sample(others, 4):
            value = CLAUSES[clause].format(pick.randrange(900, 9000))
            history[clause].append((year, value))
            texts.append(
                f"With effect from 1 January {year}, the {clause} of {name} is amended to {value}."
            )
            lines[texts[-1]] = f"{name} | {clause} | {value} | since {year}-01-01"
        if at == 0:
            right = CLAUSES[wrong].format(pick.randrange(900, 9000))
            corrected[wrong] = history[wrong][0][1]
            history[wrong] = [(2015, right)]
            texts.append(f"The {wrong} of {name} is not {corrected[wrong]} but {right}.")
            lines[texts[-1]] = f"{name} | {wrong} | {right}"
        if at == 1:
            value = history[gone][0][1]
            texts.append(f"The {gone} of {name} is {value} until 31 December 2018.")
            lines[texts[-1]] = f"{name} | {gone} | {value} | until 2018-12-31"
        documents.append(texts)
    questions = [
        Question("corrected", *_ask(wrong, name, 2016, history[wrong], [corrected[wrong]])),
        Question(
            "ended", f"What is the {gone} of {name} on 1 June 2020?", "", (history[gone][0][1],)
        ),
    ]
    changed = [clause for clause in others if len(history[clause]) > 1]
    for clause in changed[:3]:
        questions.append(Question("now", *_ask(clause, name, 2023, history[clause])))
        questions.append(Question("past", *_ask(clause, name, 2016, history[clause])))
    filled = [
        " ".join(part for text in texts for part in (text, pick.choice(FILLER)))
        for texts in documents
    ]
    return Dossier(tuple(filled), tuple(questions), lines)


def _ask(
    clause: str, name: str, year: int, history: Sequence[tuple[int, str]], more: Sequence[str] = ()
) -> tuple[str, str, tuple[str, ...]]:
    right = [value for since, value in history if since <= year][-1]
    wrong = (*(value for _, value in history if value != right), *more)
    return f"What is the {clause} of {name} on 1 June {year}?", right, wrong


@dataclass
class Script:
    """Reads and answers by rule, with the line of a fact of each sentence; see the module."""

    careful: bool
    lines: dict[str, str]

    def __call__(self, messages: list[BaseMessage]) -> str:
        """Return the reply."""
        prompt = messages[-1].text
        return self._answer(prompt) if "<section>" not in prompt else self._update(prompt)

    def _update(self, prompt: str) -> str:
        said = [one for one in _sentences(_inside(prompt, "section")) if one in self.lines]
        if "<facts>" in prompt:
            return "\n".join(self.lines[one] for one in said) or "unchanged"
        notes = [line for line in _inside(prompt, "notes").splitlines() if "(empty" not in line]
        room = int(prompt.partition("room for about ")[2].split()[0])
        notes += [one for one in said if one not in notes]
        while len(" ".join(notes).split()) > room:
            notes.pop(0)
        return "\n".join(notes)

    def _answer(self, prompt: str) -> str:
        question = _inside(prompt, "question")
        if question == STANDING:
            return r"\boxed{See the notes.}"
        clause, _, rest = question.removeprefix("What is the ").partition(" of ")
        name, _, date = rest.rstrip("?").partition(" on ")
        found = []
        for line in _sentences(_inside(prompt, "notes")):
            fact = read_fact(line) or read_fact(self.lines.get(line, ""))
            if fact and (fact.subject, fact.relation) == (name, clause):
                found.append(fact)
        if self.careful:
            day = f"{date.split()[-1]}-06-01"
            found = [one for one in overwrite([], found, Facts(Contract)) if one.holds(day)]
        return rf"\boxed{{{found[-1].object if found else 'The notes do not say.'}}}"


def _inside(prompt: str, tag: str) -> str:
    return prompt.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


def _sentences(text: str) -> list[str]:
    return [
        one.strip() for line in text.splitlines() for one in line.replace(". ", ".\n").split("\n")
    ]


def answers(
    way: str, dossier: Dossier, model: BaseChatModel, config: ReadingConfig
) -> Iterator[tuple[Question, dict[str, Any]]]:
    """Read a dossier in one way, and answer its questions; with what it has noted."""
    if way == "whole":
        for question in dossier.questions:
            prompt = Prompts().for_answer(question.text, "\n\n".join(dossier.documents))
            reply = find_boxed(model.invoke([HumanMessage(prompt)]).text)
            yield question, {"answer": reply, "found": None}
        return
    agent = create_memagent(model, config=config, store=InMemoryStore(), schema=WAYS[way])
    for at, text in enumerate(dossier.documents):
        document = TextSource(text, f"document {at}.txt")
        agent.invoke({"question": STANDING, "document": document, "memory_name": "dossier"})
    for question in dossier.questions:
        out = agent.invoke({"question": question.text, "version": "dossier"})
        yield question, {key: out[key] for key in ("answer", "found", "memory")}


Answers = dict[tuple[str, int, str, int, str], dict[str, Any]]
"""The answers so far, by model, budget, way, dossier and question."""


def add_answers(
    known: Answers,
    about: tuple[str, int, str, int],
    dossier: Dossier,
    model: BaseChatModel,
    file: Path | None,
) -> None:
    """Have a dossier read and its questions answered, if they are not."""
    if all((*about, one.text) in known for one in dossier.questions):
        return
    _, budget, way, _ = about
    config = ReadingConfig(
        chunk_tokens=600, memory_tokens=budget, answer_tokens=64, template_tokens=600
    )
    for question, answer in answers(way, dossier, model, config):
        known[*about, question.text] = answer
        if file:
            append_row(file, [*about, question.text, answer])


def is_right(question: Question, found: dict[str, Any]) -> bool:
    """Whether an answer has the right value and no other; one that is not found has none."""
    answer = "" if found["found"] is False else found["answer"]
    values = re.findall(r"\d+ \w+", answer.replace(",", ""))
    is_there = question.right in values if question.right else True
    return is_there and not any(one in values for one in question.wrong)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a model string; by default, the script reads")
    parser.add_argument("--base-url")
    parser.add_argument("--dossiers", type=int, default=25)
    parser.add_argument("--budgets", type=int, nargs="+", default=[1024, 320, 160])
    parser.add_argument("--ways", nargs="+", default=["whole", *WAYS])
    parser.add_argument("--first", type=int, default=0, help="number of the first dossier")
    parser.add_argument("--out", type=Path, help="file of the rows")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.dossiers)
    dossiers = {number: make_dossier(number) for number in numbers}
    lines = {said: line for one in dossiers.values() for said, line in one.lines.items()}
    models: dict[str, BaseChatModel] = {
        name: ScriptedChatModel(Script(name == "careful", lines)) for name in ("careful", "last")
    }
    if given.model:
        model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
        models = {given.model: model}
    kinds = ("now", "past", "corrected", "ended")
    print_head("answers", "budget", "way", "all", *kinds)
    rows: list[Any] = read_rows(given.out) if given.out else []
    known: Answers = {tuple(key): answer for *key, answer in rows}
    settings = [
        (budget, way)
        for budget in given.budgets
        for way in given.ways
        if way != "whole" or budget == given.budgets[0]  # it has no memory
    ]
    for name, model in models.items():
        for number, dossier in dossiers.items():
            for budget, way in settings:
                add_answers(known, (name, budget, way, number), dossier, model, given.out)
        for budget, way in settings:
            counts: defaultdict[str, list[bool]] = defaultdict(list)
            for number, dossier in dossiers.items():
                for question in dossier.questions:
                    answer = known[name, budget, way, number, question.text]
                    counts[question.kind].append(is_right(question, answer))
            every = [one for kind in kinds for one in counts[kind]]
            shares = [f"{100 * sum(counts[k]) / max(len(counts[k]), 1):.0f}" for k in kinds]
            print_row(name, budget, way, in_percent(every, digits=0), *shares)


if __name__ == "__main__":
    main()
