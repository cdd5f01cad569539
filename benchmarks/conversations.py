"""python benchmarks/conversations.py FILE STEP: what a memory keeps of long conversations.

Conversations of the LoCoMo file and of BEAM's in MEMAGENT_DATA; the texts are not ours, so FILE
stays out of the repository. The steps append JSON lines to FILE, and what it has is not made again:

- `keep WAY...` saves each conversation in a way, and writes what is told when a question comes. A
  way is a model string or "extractive", with which `ConversationMemory` folds; or one of `OTHERS`,
  with as many tokens. A fold that was stopped goes on with the messages that are not folded yet.
- `ask WAY... --model MODEL` has a model answer the questions from that.
- `report` prints the tables. A message is told by half if half of its content words stand in
  passages of it, each of them word for word, and by its key if the sentence of it is told that has
  most words of the question and its answer; a question counts if all of its messages are told. F1
  is LoCoMo's, of the words of the answer. Differences are paired, with intervals of 95%.

`chats MODEL` folds chats in which users say five facts of themselves each, and fifty of small talk
in five languages, made before any prompt was chosen. Printed are the notes, the facts in them and
in the model's replies in another thread. Whether notes say what no user said is for a reader of the
output to see.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from chats import CHATS, SMALL_TALK
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from local_models import recorded

from memagent_graph import ConversationMemory, ReadingConfig
from memagent_graph.conversation.messages import SAID_AT
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.evaluation.samples import token_f1
from memagent_graph.evaluation.scores import holds
from memagent_graph.evidence.statements import statements
from memagent_graph.memory.stores import open_store
from memagent_graph.models.resolve import resolve_model
from memagent_graph.readers.completion import find_boxed
from memagent_graph.text.terms import content_terms, specific_terms, terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTER = EstimatingTokenizer()
OTHERS = ("bm25", "last")
HARD = {1, 2, "multi_session_reasoning", "temporal_reasoning", "knowledge_update"}
"""Kinds of questions: over several sessions, on time, on updates."""
UNANSWERABLE = 5
"""LoCoMo's category of questions that the conversation does not answer."""
AT_ONCE = 20
"""Messages saved at once: what a stopped run loses, at most."""
MARK = re.compile(r"->->\s*+\d[\d,\s]*+(?:N/A)?(?=\)?\s*+\Z)")
"""What BEAM's generator wrote at the end of messages."""
ASK = """\
Below is what you remember of conversations, and a question.

<memory>
{context}
</memory>

<question>
{question}
</question>

Answer in a few words, from the memory alone. If it does not say, reply "not mentioned".
"""


class Asked(NamedTuple):
    question: str
    answer: str
    sources: list[BaseMessage]
    hard: bool


Said = tuple[list[BaseMessage], list[Asked]]


def message(kind: type[BaseMessage], text: str, id: str, name: str, at: str, form: str) -> Any:
    said_at = datetime.strptime(at, form).replace(tzinfo=UTC).isoformat(timespec="minutes")
    return kind(text, id=id, name=name, additional_kwargs={SAID_AT: said_at})


def locomo(folder: Path) -> Iterator[Said]:
    for sample in json.loads((folder / "locomo.json").read_text("utf-8")):
        talks = sample["conversation"]
        known = {
            turn["dia_id"]: message(
                HumanMessage,
                turn["text"],
                turn["dia_id"],
                turn["speaker"],
                talks[f"session_{number}_date_time"],
                "%I:%M %p on %d %B, %Y",
            )
            for number in range(1, len(talks))
            for turn in talks.get(f"session_{number}", ())
        }
        asked = []
        for row in sample["qa"]:
            sources = [known[turn] for turn in row["evidence"] if turn in known]
            if row["category"] != UNANSWERABLE and sources:
                answer, hard = str(row.get("answer", "")), row["category"] in HARD
                asked.append(Asked(row["question"], answer, sources, hard))
        yield [*known.values()], asked


def beam(folder: Path) -> Iterator[Said]:
    for row in json.loads((folder / "beam_100k.json").read_text("utf-8")):
        known: dict[int, BaseMessage] = {}
        day = ""
        for turn in row["turns"]:
            day = turn.get("time_anchor") or day
            kind = HumanMessage if turn["role"] == "user" else AIMessage
            text = MARK.sub("", turn["content"]).rstrip()
            known[turn["id"]] = message(kind, text, str(turn["id"]), turn["role"], day, "%B-%d-%Y")
        asked = []
        for kind_, rows in row["questions"].items():
            for one in rows:
                ids = dict.fromkeys(flat(one.get("source_chat_ids")))
                keys = ("answer", "ideal_answer", "ideal_response", "ideal_summary")
                answer = next((str(one[key]) for key in keys if key in one), "")
                if sources := [known[i] for i in ids if i in known]:
                    asked.append(Asked(one["question"], answer, sources, kind_ in HARD))
        yield [*known.values()], asked


def flat(ids: Any) -> list[int]:
    if isinstance(ids, dict | list):
        return [i for part in (ids.values() if isinstance(ids, dict) else ids) for i in flat(part)]
    return [] if ids is None else [ids]


SETS: dict[str, Callable[[Path], Iterator[Said]]] = {"locomo": locomo, "beam": beam}


def text_of(messages: list[BaseMessage]) -> str:
    return "".join(f"{message.name or ''}: {message.content}\n" for message in messages)


def whole(messages: list[BaseMessage], order: list[int], budget: int) -> str:
    """As many messages as there is room for; one that is too long is passed over."""
    chosen = []
    for number in order:
        cost = COUNTER.count(text_of([messages[number]]))
        if cost <= budget:
            budget -= cost
            chosen.append(number)
    return text_of([messages[number] for number in sorted(chosen)])


def are_told(asked: Asked, context: str) -> tuple[bool, bool]:
    """Whether all sources of a question are told: by half, by their key."""
    lines = re.sub(r"\n\s+", " ", context).splitlines()
    everything = " ".join(context.split())
    said = [line.partition(": ")[2] or line for line in lines]
    pieces = [" ".join(piece.split()) for line in said for piece in line.split("[…]")]
    wanted = set(content_terms(f"{asked.question} {asked.answer}"))
    half, key = [], []
    for source in asked.sources:
        text = " ".join(str(source.content).split())
        own = {term for piece in pieces if piece and piece in text for term in terms(piece)}
        content = set(specific_terms(text)) or set(terms(text))
        half.append(2 * len(content & own) >= len(content))
        sentences = (one.text for one in statements(str(source.content)))
        best = max(sentences, key=lambda one: len(wanted & set(terms(one))))
        key.append(" ".join(best.split()) in everything)
    return all(half), all(key)


def contexts(
    way: str, messages: list[BaseMessage], asked: list[Asked], given: argparse.Namespace, user: str
) -> Iterator[tuple[str, str]]:
    """Yield notes and context for each question; only `ConversationMemory` has notes."""
    if way == "last":
        last = whole(messages, [*range(len(messages))][::-1], given.budget)
        yield from (("", last) for _ in asked)
        return
    if way == "bm25":
        search = PassageSearch([text_of([one]) for one in messages])
        yield from (("", whole(messages, search.rank(one.question), given.budget)) for one in asked)
        return
    used, started = UsageMetadataCallbackHandler(), perf_counter()
    model: Any = way
    if way != "extractive":
        model = resolve_model(way, base_url=given.base_url, temperature=0.0)
        model.callbacks = [used]
    name = re.sub(r"\W", "_", f"{given.file.stem}_{Path(way).name}")
    with open_store(str(given.file.resolve().with_name(f"{name}.db"))) as store:
        config = ReadingConfig(memory_tokens=given.budget)
        memory = ConversationMemory(model, store=store, remember_within=1e6, config=config)
        for first in range(0, len(messages), AT_ONCE):
            memory.save(messages[first : first + AT_ONCE], user=user, thread="one")
        notes = memory.load(user)
        usage = [sum(one[of] for one in used.usage_metadata.values()) for of in TOKENS]
        row = {"step": "fold", "user": user, "way": Path(way).name, "notes": notes}
        append(given.file, row | {"seconds": perf_counter() - started, "usage": usage})
        for one in asked:
            (prompt,) = memory.prompt(user, about=one.question)
            yield notes, re.sub(r"(?s)^.*?<memory>\n|</?(?:memory|passages)>\n", "", prompt.text)


TOKENS = ("input_tokens", "output_tokens")


def append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def keep(given: argparse.Namespace) -> None:
    done = {(row["user"], row["way"]) for row in recorded(given.file) if row["step"] == "keep"}
    for group, count in (("locomo", given.locomo), ("beam", given.beam)):
        for number, (messages, asked) in enumerate(SETS[group](Path(os.environ["MEMAGENT_DATA"]))):
            user = f"{group} {number}"
            for way in given.ways:
                if number >= count or (user, Path(way).name) in done:
                    continue
                told = [*contexts(way, messages, asked, given, user)]
                for one, (notes, context) in zip(asked, told, strict=True):
                    half, key = are_told(one, context)
                    row = {"step": "keep", "user": user, "way": Path(way).name}
                    row |= {"question": one.question, "answer": one.answer, "hard": one.hard}
                    row |= {"half": half, "key": key, "in notes": holds(notes, one.answer)}
                    row |= {"in context": holds(context, one.answer), "context": context}
                    append(given.file, row)


def ask(given: argparse.Namespace) -> None:
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0, max_tokens=48)
    rows = recorded(given.file)
    keys = ("user", "question", "way")
    name = Path(given.model).name
    done = {
        tuple(row[key] for key in keys)
        for row in rows
        if row["step"] == "ask" and row["model"] == name
    }
    kept = {tuple(row[key] for key in keys): row for row in rows if row["step"] == "keep"}
    questions = sorted({key[:2] for key in kept})
    for about in Random(0).sample(questions, min(given.samples, len(questions))):
        for way in given.ways:
            if (key := (*about, Path(way).name)) in done or key not in kept:
                continue
            row = kept[key]
            asked = ASK.format(context=row["context"], question=row["question"])
            said = find_boxed(model.invoke([HumanMessage(asked)]).text)
            out = dict(zip(keys, key, strict=True)) | {"step": "ask", "model": name}
            append(given.file, out | {"reply": said, "f1": token_f1(said, [row["answer"]])})


def interval(differences: list[float]) -> str:
    """Mean of paired differences with its 95% bootstrap interval, in points."""
    draw = Random(0)
    means = sorted(mean(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return f"{100 * mean(differences):+.1f} [{100 * means[50]:+.1f}, {100 * means[1949]:+.1f}]"


def report(given: argparse.Namespace) -> None:
    by: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for row in recorded(given.file):
        if row["step"] == "fold":
            size, seconds = COUNTER.count(row["notes"]), f"{row['seconds']:.0f} s"
            print(row["user"], row["way"], f"{size} tokens", seconds, row["usage"])
        else:
            step = f"{row['step']} {row.get('model', '')}".strip()
            by[step, f"{row['user'].split()[0]} {row['way']}"][row["user"], row["question"]] = row
    base = given.ways[0] if given.ways else "extractive"
    for (step, way), found in sorted(by.items()):
        ours = by[step, f"{way.split()[0]} {base}"]
        for of in ("f1",) if "ask" in step else ("half", "key", "in notes", "in context"):
            pairs = [float(ours[key][of]) - row[of] for key, row in found.items() if key in ours]
            figure = f"{100 * mean(row[of] for row in found.values()):.1f}"
            ahead = f"{base} ahead by {interval(pairs)}" if any(pairs) else ""
            print(step, way, len(found), of, figure, ahead, sep=" | ")


def fold(memory: ConversationMemory, said: list[str], user: str) -> str:
    """Fold a chat, and return the notes on the user in one line."""
    messages = [part for text in said for part in (HumanMessage(text), AIMessage("I see."))]
    memory.save(messages, user=user, thread=user)
    return " / ".join(memory.load(user).splitlines())


def chats(given: argparse.Namespace) -> None:
    used = UsageMetadataCallbackHandler()
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    model.callbacks = [used]
    memory = ConversationMemory(model)
    kept = replied = count = 0
    for number, chat in enumerate(CHATS):
        notes = fold(memory, [*chat], f"chat {number}")
        print(notes, flush=True)
        for question, fact in chat.values():
            told = memory.prompt(f"chat {number}", about=question)
            reply = model.invoke([*told, HumanMessage(question)], max_tokens=64).text
            count, kept = count + 1, kept + (fact in notes)
            replied += fact.casefold() in reply.casefold()
            print(f"  {question} {reply!r}", flush=True)
        print(f"{kept} of {count} facts in notes, {replied} in replies", flush=True)
    for language, talks in SMALL_TALK.items():
        for number, said in enumerate(talks):
            print(language, said, "|", fold(memory, said, f"{language} {number}"), flush=True)
    print(used.usage_metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("step", choices=("keep", "ask", "report", "chats"))
    parser.add_argument("ways", nargs="*", help=f"model strings, extractive, {', '.join(OTHERS)}")
    parser.add_argument("--model", help="model that answers or, with chats, folds and answers")
    parser.add_argument("--base-url")
    parser.add_argument("--locomo", type=int, default=10, help="conversations of LoCoMo")
    parser.add_argument("--beam", type=int, default=10, help="conversations of BEAM")
    parser.add_argument("--samples", type=int, default=100, help="questions to ask")
    parser.add_argument("--budget", type=int, default=1500, help="tokens of a context")
    given = parser.parse_args()
    {"keep": keep, "ask": ask, "report": report, "chats": chats}[given.step](given)


if __name__ == "__main__":
    main()
