"""python benchmarks/conversations.py FILE STEP: what a memory keeps of long conversations.

Conversations of the LoCoMo file and of BEAM's in MEMAGENT_DATA; the texts are not ours, so FILE
stays out of the repository. The steps append JSON lines to FILE, and what it has is not made again:

- `keep WAY...` saves each conversation in a way, and writes what is told when a question comes. A
  way is a model string or "extractive", with which `ConversationMemory` folds; or one of `OTHERS`,
  with as many tokens: "summary" is LangChain's `SummarizationMiddleware` with --model. A fold that
  was stopped goes on with the messages that are not folded yet.
- `ask WAY...` has --model answer the first --questions of a conversation from what each way told.
- `report` prints the tables. A message is told if half of its content words stand in passages of
  it, each of them word for word; a question counts if all of its messages are told. Differences are
  paired, with intervals of 95%.

Those of dialogues.jsonl were made before any prompt was chosen, in five languages. `chats` folds
five in which users say five facts of themselves, and fifty of small talk; printed are the notes,
the facts in them and in the replies of --model in another thread. `dialogues` folds sixty in which
what a user says is contradicted, negated, corrected or deleted; even ones are for choosing. Whether
notes say what no user said is for a reader of the output to see.

`cache` says of threads, of LoCoMo and of BEAM with results of tools, what a server that keeps the
last prompt in blocks of 16 tokens has of the next one, or --model's really has of the first
--questions, and for how many questions it tells all sources. 10 to 20 messages are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain, groupby, pairwise, takewhile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from intervals import difference, in_percent
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from measurement import append_row, print_head, print_row, read_rows

from memagent_graph import ConversationMemory, MemAgentMiddleware, ReadingConfig
from memagent_graph.conversation.messages import SAID_AT
from memagent_graph.conversation.thread import remind
from memagent_graph.evaluation.methods import PassageSearch
from memagent_graph.evaluation.samples import holds, normalize
from memagent_graph.memory.stores import open_store
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.testing import ScriptedChatModel, call_tool
from memagent_graph.text.terms import specific_terms, terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import Runnable

COUNTER = EstimatingTokenizer()
OTHERS = ("bm25", "last", "summary")
KINDS = ("contradiction", "negation", "correction", "deletion")
SHORTLY = "Answer in a few words, from the text above alone."
UNANSWERABLE = 5
"""LoCoMo's category of questions that the conversation does not answer."""
AT_ONCE = 20
"""Messages saved, or questions asked, at once: what a stopped run loses, at most."""
MARK = re.compile(r"->->\s*+\d[\d,\s]*+(?:N/A)?(?=\)?\s*+\Z)")
"""What BEAM's generator wrote at the end of messages."""


class Asked(NamedTuple):
    question: str
    answer: str
    sources: list[BaseMessage]


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
                asked.append(Asked(row["question"], str(row.get("answer", "")), sources))
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
        for rows in row["questions"].values():
            for one in rows:
                ids = dict.fromkeys(flat(one.get("source_chat_ids")))
                keys = ("answer", "ideal_answer", "ideal_response", "ideal_summary")
                answer = next((str(one[key]) for key in keys if key in one), "")
                if sources := [known[i] for i in ids if i in known]:
                    asked.append(Asked(one["question"], answer, sources))
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


def are_told(asked: Asked, context: str) -> bool:
    """Whether all sources of a question are told."""
    lines = re.sub(r"\n\s+", " ", context).splitlines()
    said = [line.partition(": ")[2] or line for line in lines]
    pieces = [" ".join(piece.split()) for line in said for piece in line.split("[…]")]
    half = []
    for source in asked.sources:
        text = " ".join(str(source.content).split())
        own = {term for piece in pieces if piece and piece in text for term in terms(piece)}
        content = set(specific_terms(text)) or set(terms(text))
        half.append(2 * len(content & own) >= len(content))
    return all(half)


def contexts(
    way: str, messages: list[BaseMessage], asked: list[Asked], given: argparse.Namespace, user: str
) -> Iterator[tuple[str, str]]:
    """Yield notes and context for each question; only `ConversationMemory` has notes."""
    if way == "last":
        last = whole(messages, [*range(len(messages))][::-1], given.budget)
        yield from (("", last) for _ in asked)
        return
    if way == "summary":
        writer = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
        size, told = given.budget, messages[:0]
        made = SummarizationMiddleware(writer, trigger=("tokens", size), keep=("tokens", size // 2))
        for said in messages:
            told.append(said)
            if changed := made.before_model({"messages": told}, Runtime()):  # type: ignore[typeddict-item]
                told = changed["messages"][1:]  # the first removes all
        yield from (("", text_of(told)) for _ in asked)
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
        counts = used.usage_metadata.values()
        usage = [sum(one[of] for one in counts) for of in ("input_tokens", "output_tokens")]
        row = {"step": "fold", "user": user, "way": Path(way).name, "notes": notes}
        append_row(given.file, row | {"seconds": perf_counter() - started, "usage": usage})
        for one in asked:
            (prompt,) = memory.prompt(user, about=one.question)
            yield notes, re.sub(r"(?s)^.*?<memory>\n|</?(?:memory|passages)>\n", "", prompt.text)


def keep(given: argparse.Namespace) -> None:
    done = {(row["user"], row["way"]) for row in read_rows(given.file) if row["step"] == "keep"}
    for group, count in (("locomo", given.locomo), ("beam", given.beam)):
        for number, (messages, asked) in enumerate(SETS[group](Path(os.environ["MEMAGENT_DATA"]))):
            user = f"{group} {number}"
            for way in given.ways:
                if number >= count or (user, Path(way).name) in done:
                    continue
                told = [*contexts(way, messages, asked, given, user)]
                for one, (notes, context) in zip(asked, told, strict=True):
                    row: dict[str, Any] = {"step": "keep", "user": user, "way": Path(way).name}
                    row |= {"question": one.question, "told": are_told(one, context)}
                    row |= {"in notes": holds(notes, one.answer), "context": context}
                    row |= {"in context": holds(context, one.answer), "answer": one.answer}
                    append_row(given.file, row)


def ask(given: argparse.Namespace) -> None:
    """Answer some questions in all ways before the next, so that a stopped run has pairs."""
    rows = read_rows(given.file)
    done = {(row["user"], row["question"], row["way"]) for row in rows if row["step"] == "ask"}
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    told: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["step"] == "keep" and row["way"] in given.ways:
            told[row["user"], row["question"]][row["way"]] = row
    by_chance = sorted(told, key=lambda key: sha256(key[1].encode()).digest())
    left = [
        (*key, way, row)
        for key in by_chance[: given.questions]
        for way, row in told[key].items()
        if (*key, way) not in done
    ]
    for first in range(0, len(left), AT_ONCE):
        some = left[first : first + AT_ONCE]
        asked = [f"{row['context']}\n\n{SHORTLY}\nQuestion: {of}" for _, of, _, row in some]
        replies = model.batch(asked, max_tokens=48)
        for (user, question, way, row), reply in zip(some, replies, strict=True):
            said = {"step": "ask", "user": user, "question": question, "way": way}
            score = f1(reply.text, row["answer"])
            append_row(given.file, said | {"reply": reply.text, "F1": score})


def f1(reply: str, answer: str) -> float:
    """The harmonic mean of precision and recall over words, as LoCoMo scores answers."""
    said, wanted = Counter(normalize(reply).split()), Counter(normalize(answer).split())
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total()) if shared else 0.0


def report(given: argparse.Namespace) -> None:
    by: dict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for row in read_rows(given.file):
        if row["step"] == "fold":
            size, seconds = COUNTER.count(row["notes"]), f"{row['seconds']:.0f} s"
            print(row["user"], row["way"], f"{size} tokens", seconds, row["usage"])
        else:
            key = row["user"], row["question"]
            by[f"{row['user'].split()[0]} {row['way']}"].setdefault(key, {}).update(row)
    base = given.ways[0] if given.ways else "extractive"
    print_head("way", "questions", "of", "share", f"points of {base} ahead")
    for way, found in sorted(by.items()):
        ours = by[f"{way.split()[0]} {base}"]
        for of in ("told", "in notes", "in context", "F1"):
            rows = {key: row for key, row in found.items() if of in row}
            both = [
                (row[of], ours[key][of]) for key, row in rows.items() if of in ours.get(key, ())
            ]
            ahead = difference(*zip(*both, strict=True)) if both else ""
            print_row(way, len(rows), of, in_percent([row[of] for row in rows.values()]), ahead)


def fold(memory: ConversationMemory, said: list[str], user: str) -> str:
    """Fold a chat, and return the notes on the user in one line."""
    messages = [part for text in said for part in (HumanMessage(text), AIMessage("I see."))]
    memory.save(messages, user=user, thread=user)
    return " / ".join(memory.load(user).splitlines())


def made(*kinds: str) -> list[dict[str, Any]]:
    """Return the dialogues of some kinds."""
    rows = read_rows(Path(__file__).with_name("dialogues.jsonl"))
    return [row for row in rows if row["kind"] in kinds]


def answer(model: BaseChatModel, memory: ConversationMemory, user: str, question: str) -> str:
    """Return a model's reply in a new thread."""
    said = remind([HumanMessage(question)], memory.prompt(user, about=question))
    return model.invoke(said, max_tokens=64).text


def dialogues(given: argparse.Namespace) -> None:
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    memory = ConversationMemory("extractive" if "extractive" in given.ways else model)
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for number, row in enumerate(made(*KINDS)):
        user = f"dialogue {number}"
        said = [HumanMessage(text, id=f"{number} {at}") for at, text in enumerate(row["said"])]
        for one in said:
            memory.save([one, AIMessage("I see.", id=f"{one.id} reply")], user=user, thread=user)
        if (deleted := row.get("deletes")) is not None:
            memory.forget_messages(user, [str(said[deleted].id)])
        notes, reply = memory.load(user), answer(model, memory, user, row["asks"])
        found = {"now in notes": row["now"], "old in notes": row["old"]}
        seen = {of: bool(text and re.search(text, notes)) for of, text in found.items()}
        seen["right"] = bool(re.search(row["now"], reply))
        counts[row["kind"], ("tune", "held out")[number % 2]].update({"n": 1, **seen})
        print(row["kind"], notes.splitlines(), repr(reply), seen, flush=True)
    for (kind, half), count in sorted(counts.items()):
        print_row(kind, half, *(f"{of}: {number}" for of, number in count.items()))


def chats(given: argparse.Namespace) -> None:
    used = UsageMetadataCallbackHandler()
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    model.callbacks = [used]
    memory = ConversationMemory(model)
    kept = replied = count = 0
    for number, row in enumerate(made("facts", "small talk")):
        notes = fold(memory, row["said"], f"chat {number}")
        print(row["kind"], row["said"], "|", notes, flush=True)
        for question, fact in zip(row.get("asks", ()), row.get("now", ()), strict=True):
            reply = answer(model, memory, f"chat {number}", question)
            count, kept = count + 1, kept + (fact in notes)
            replied += fact.casefold() in reply.casefold()
            print(f"  {question} {reply!r}", flush=True)
    print(f"{kept} of {count} facts in notes, {replied} in replies", used.usage_metadata)


WINDOW, BLOCK, TURNS = 20, 16, 200
TOKEN = re.compile(r"\w+|[^\w\s]")
Turns = list[tuple[str, str | None, str]]  # a user's words, what a tool returns, the reply


def talk_of_two(messages: list[BaseMessage]) -> Turns:
    """The turns of a LoCoMo conversation: one speaker is the user, the other the assistant."""
    talks = groupby(messages, lambda one: one.name == messages[0].name)
    said = ["\n".join(one.text for one in talk) for _, talk in talks]
    return [(text, None, reply) for text, reply in zip(said[::2], said[1::2], strict=False)][:TURNS]


def talk_with_tools(messages: Iterator[BaseMessage]) -> Turns:
    """Turns of BEAM, in every second of which a tool returns what the assistant says there."""
    said = [one.text for one, _ in zip(messages, range(2 * TURNS), strict=False)]
    return [
        (text[:500], reply[:1500] if number % 2 == 0 else None, reply[-400:])
        for number, (text, reply) in enumerate(zip(said[::2], said[1::2], strict=True))
    ]


def hosts(turns: Turns) -> Iterator[tuple[str, ScriptedChatModel, ConversationMemory, Runnable]]:
    """Yield agents with a memory or a summary, each with its model."""
    for way in ("memory", "summary"):
        calls = [[reply] if it is None else [call_tool("look"), reply] for _, it, reply in turns]
        model = ScriptedChatModel(*chain.from_iterable(calls), *["Noted."] * 1000)
        results = iter([result for _, result, _ in turns if result is not None])
        look = StructuredTool.from_function(results.__next__, name="look", description="Look up.")
        memory = ConversationMemory(store=InMemoryStore(), window=WINDOW, remember_within=1e6)
        middleware: Any = MemAgentMiddleware(memory)
        if way != "memory":
            middleware = SummarizationMiddleware(
                ScriptedChatModel(*(f"This is summary {n}. " * 50 for n in range(len(turns)))),
                trigger=("messages", WINDOW + 1),
                keep=("messages", WINDOW // 2),
            )
        made = create_agent(model, [look], middleware=[middleware], checkpointer=InMemorySaver())
        yield way, model, memory, made


def share_of(prompts: list[list[str]]) -> float:
    """Return which part of prompts begins as the one before, in whole blocks."""
    pairs = (zip(*pair, strict=False) for pair in pairwise(prompts))
    same = (len([*takewhile(lambda two: two[0] == two[1], pair)]) for pair in pairs)
    return sum(one // BLOCK * BLOCK for one in same) / sum(map(len, prompts))


def share_of_server(given: argparse.Namespace, model: ScriptedChatModel) -> float:
    """Return which part of prompts, of the first --questions, a real server had in its cache."""
    asked = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    counts: Counter[str] = Counter()
    for call in model.calls[: given.questions]:
        used: Any = asked.invoke(call.messages, max_tokens=1).usage_metadata
        counts.update(all=used["input_tokens"], **used.get("input_token_details", {}))
    return counts["cache_read"] / counts["all"]


def cache(given: argparse.Namespace) -> None:
    folder = Path(os.environ["MEMAGENT_DATA"])
    threads = [("LoCoMo", talk_of_two(said), asked) for said, asked in locomo(folder)]
    more = (one for said, _ in beam(folder) for one in said)
    threads = [*threads[: given.locomo], ("with tools", talk_with_tools(more), [])]
    print_head("thread", "way", "cached", "tokens a prompt", "not cached", "told")
    for name, turns, asked in threads:
        for way, model, memory, agent in hosts(turns):
            config: Any = {"configurable": {"user_id": "ann", "thread_id": "one"}}
            for text, _, _ in turns:
                agent.invoke({"messages": [("human", text)]}, config)
                memory.flush()
            sent = ["\n".join(f"{m.type} {m.text}" for m in call.messages) for call in model.calls]
            if given.model:
                print(name, way, f"{share_of_server(given, model):.1%} cached by the server")
            prompts = [TOKEN.findall(text) for text in sent]
            size, share = sum(map(len, prompts)) / len(prompts), share_of(prompts)
            at = agent.get_state(config).config["configurable"]["checkpoint_id"]
            config["configurable"] |= {"checkpoint_id": at, "memory_access": "read"}
            told = 0
            for one in asked[: given.questions]:
                agent.invoke({"messages": [("human", one.question)]}, config)
                told += are_told(one, "\n".join(m.text for m in model.calls[-1].messages))
            print_row(name, way, f"{share:.1%}", f"{size:.0f}", f"{size * (1 - share):.0f}", told)


STEPS = {one.__name__: one for one in (keep, ask, report, chats, dialogues, cache)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("step", choices=(*STEPS,))
    parser.add_argument("ways", nargs="*", help=f"model strings, extractive, {', '.join(OTHERS)}")
    parser.add_argument("--model", help="that answers, and folds chats and summaries")
    parser.add_argument("--questions", type=int, default=100, help="with ask")
    parser.add_argument("--base-url")
    parser.add_argument("--locomo", type=int, default=10, help="conversations of LoCoMo")
    parser.add_argument("--beam", type=int, default=10, help="conversations of BEAM")
    parser.add_argument("--budget", type=int, default=1500, help="tokens of a context")
    given = parser.parse_args()
    STEPS[given.step](given)


if __name__ == "__main__":
    main()
