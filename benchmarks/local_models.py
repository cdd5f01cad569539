"""python benchmarks/local_models.py FILE MODEL: ask a small model questions, in several ways.

A set is NQ's questions (`nq`: the passage that answers among others; `missed`: those whose answer
is not in the passages that BM25 shows), XQuAD's in two languages (the paragraph among four others),
HotpotQA's over its own paragraphs, RULER's samples, or questions that count and list, made here of
novels and of NQ (`counts`); all from the files of MEMAGENT_DATA. NQ's are of three kinds:
`answered`; `absent` has only the other passages; in `near` the document is about the same thing and
lacks the answer (NQ's own passage without the sentence that has it, or other paragraphs of the
XQuAD article). Each reading appends a JSON line to FILE. A reading that FILE has is not repeated,
so the same command continues a run that was stopped. Questions are split into halves by a hash:
`tune` is for choosing settings, `report` for figures. The texts are not ours: FILE stays out of the
repository. FILE --report prints a table, with intervals of 95%, and each way's difference from the
way `reading` on the same questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
from collections import defaultdict
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from intervals import difference, in_percent
from langchain_core.callbacks import UsageMetadataCallbackHandler
from measurement import append_row, print_head, print_row, read_rows

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.errors import MemAgentError
from memagent_graph.evaluation.methods import PASSAGE_TOKENS, PassageSearch, make_method
from memagent_graph.evaluation.questions import read_questions, ruler_tasks
from memagent_graph.evaluation.samples import holds
from memagent_graph.evidence.statements import statements
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.replies import says_not_found
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.text.chunks import chunks, cut_at_sentence
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.language_models import BaseChatModel

    from memagent_graph.text.tokens import Tokenizer

SEED = 37
OTHERS = ("whole", "bm25", "embeddings", "map_reduce", "li-refine")
WAYS: dict[str, dict[str, Any]] = {
    "reading": {},
    "notes": {"answer_passages": 0},
    "auto": {"how": "auto"},
    "gate": {"update_gate": True},
    "skim": {"skim": "lexical"},
    "published": {"exact_cuts": True},
    **{way: {} for way in OTHERS},
}
"""Settings of each way; `published` takes its prompts from --prompts."""
FILES = {
    "xquad": "xquad.en.json",
    "xquad.zh": "xquad.zh.json",
    "hotpot": "hotpotqa_distractor.json",
}
SETS = ("nq", "missed", "counts", "ruler", *FILES)
COUNTED = 1_800  # tokens of a document whose names are counted
READS, WRITES = 43, 15
"""Tokens a second that the model of 1.5B reads and writes on two cores."""
EMBEDDINGS = os.environ.get("EMBEDDINGS", "huggingface:all-MiniLM-L6-v2")
KINDS = ("answered", "absent", "near")
COUNTER = EstimatingTokenizer()
NUMERALS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class Asked(NamedTuple):
    """One question of a document.

    Attributes:
        kind: whether the document has the answer: one of `KINDS`.
        name: the question's, in the file.
        text: the document.
        question: the question.
        answers: right answers; any is enough, or `every` one is needed.
    """

    kind: str
    name: str
    text: str
    question: str
    answers: list[str]
    every: bool = False

    @property
    def half(self) -> str:
        """Whether it serves to choose settings or to report."""
        return ("tune", "report")[sha256(self.question.encode()).digest()[0] % 2]


def questions(data: Path, name: str, kind: str, passages: int, room: int) -> Iterator[Asked]:
    """Return the questions of a set and kind, always in the same order.

    A document has so many passages of NQ. The other sets have answered questions alone. BM25 shows
    passages of `room` tokens.
    """
    if name == "nq":
        yield from nq(data, kind, passages)
    elif kind == "answered" and name == "missed":
        yield from (one for one in nq(data, kind, passages) if is_missed(one, room))
    elif kind == "answered":
        makes = {"counts": counts, "ruler": ruler}
        yield from makes[name](data) if name in makes else others(data / FILES[name])


def nq(data: Path, kind: str, passages: int) -> Iterator[Asked]:
    rows = [json.loads(line) for line in (data / "nq_open.jsonl").read_text("utf-8").splitlines()]
    random.Random(SEED).shuffle(rows)
    near = xquad(data) if kind == "near" else iter(())
    for number, row in enumerate(rows):
        chance = random.Random(number)
        others = [
            other["text"]
            for other in chance.sample(rows, 4 * passages)
            if other is not row and not has_any(other["text"], row["answers"])
        ][: passages - 1]
        own = row["text"]
        if kind == "near":
            own = " ".join(
                one.text for one in statements(own) if not has_any(one.text, row["answers"])
            )
            if len(own) < len(row["text"]) / 3:
                continue
        if kind != "absent":
            others.insert(chance.randrange(passages), own)
        yield Asked(kind, f"nq {number}", "\n\n".join(others), row["question"], row["answers"])
        if (asked := next(near, None)) is not None:
            yield asked


def articles(data: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the paragraphs of each article of XQuAD."""
    for article in json.loads((data / "xquad.en.json").read_text("utf-8"))["data"]:
        yield article["paragraphs"]


def xquad(data: Path) -> Iterator[Asked]:
    """Yield a question of each paragraph, over the other paragraphs of its article."""
    for number, paragraphs in enumerate(articles(data)):
        texts = [paragraph["context"] for paragraph in paragraphs]
        for own, paragraph in enumerate(paragraphs):
            asked = paragraph["qas"][0]
            answers = [answer["text"] for answer in asked["answers"]]
            others = [
                text
                for at, text in enumerate(texts)
                if at != own and not any(answer in text for answer in answers)
            ]
            if others:
                text = "\n\n".join(others[:4])
                yield Asked("near", f"xquad {number} {own}", text, asked["question"], answers)


def others(file: Path) -> Iterator[Asked]:
    """Yield a question of each paragraph, over five of the file, or over its own distractors."""
    asked = {one.gold: one for one in read_questions(file)}
    paragraphs = [gold[0] for gold in asked]
    for number, (gold, one) in enumerate(asked.items()):
        first = number - number % 5
        texts = [*gold, *one.near] if one.near else paragraphs[first : first + 5]
        random.Random(number).shuffle(texts)
        name = f"{file.stem} {number}"
        yield Asked("answered", name, "\n\n".join(texts), one.text, [*one.answers])


def ruler(data: Path) -> Iterator[Asked]:
    """Yield the first sample of each task, then the second, and so on."""
    tasks = ruler_tasks(data / "ruler_8k.jsonl")
    for number in range(max(len(task.texts) for task in tasks)):
        for task in tasks:
            one = task.sample(0, number, seed=SEED, tokenizer=COUNTER)
            text, every = "".join(one.pieces()), one.metric == "all"
            name = f"{task.name} {number}"
            yield Asked("answered", name, text, one.question, [*one.answers], every=every)


def counts(data: Path) -> Iterator[Asked]:
    """Yield, in turn, how often a part of a novel names somebody, and which years passages name."""
    files = ("moby-dick.txt", "war_and_peace.txt")
    texts = [(data / file).read_text("utf-8") for file in files]
    for number, asked in enumerate(nq(data, "answered", 15)):
        chance, novel = random.Random(number), texts[number % 2]
        start = chance.randrange(len(novel) // 10, len(novel) * 9 // 10)
        part = cut_at_sentence(novel[start:].partition("\n\n")[2], COUNTED, COUNTER)
        said = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{3,}", part))
        exact = {one: len(re.findall(rf"\b{one}\b", part)) for one in said}
        if named := sorted(one for one, often in exact.items() if 3 <= often <= len(NUMERALS)):
            who = chance.choice(named)
            question = f"How many times does the text name {who}? Answer with a number."
            right = [str(exact[who]), NUMERALS[exact[who] - 1]]
            yield Asked("answered", f"count {number}", part, question, right)
        years = sorted(set(re.findall(r"\b1[5-9]\d\d\b|\b20[01]\d\b", asked.text)))
        if 3 <= len(years) <= 8:
            question = "Which years does the text name? List all of them."
            yield Asked("answered", f"list {number}", asked.text, question, years, every=True)


def is_missed(asked: Asked, room: int) -> bool:
    """Whether no passage that BM25 shows has an answer."""
    cut = chunks(TextSource(asked.text), tokenizer=COUNTER, chunk_tokens=PASSAGE_TOKENS)
    parts = [chunk.text for chunk in cut]
    best = PassageSearch(parts).rank(asked.question)[: max(1, room // PASSAGE_TOKENS)]
    return not has_any("\n".join(parts[one] for one in best), asked.answers)


def has_any(text: str, answers: list[str]) -> bool:
    """Whether a text has one of the answers, in any case."""
    return any(answer.casefold() in text.casefold() for answer in answers)


async def read(
    model: BaseChatModel,
    config: ReadingConfig,
    way: str,
    asked: Asked,
    prompts: Prompts | None,
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:
    """Ask one question in one way, and return what became of it."""
    used, started = UsageMetadataCallbackHandler(), perf_counter()
    model = model.model_copy(update={"callbacks": [used]})
    reader = ChatReader(model, config=config, prompts=prompts, tokenizer=tokenizer)
    row: dict[str, Any] = {"found": None, "warnings": [], "error": "", "memory": ""}
    try:
        if way == "li-refine":
            row["answer"] = await llama_index(model, config, asked, tokenizer)
        elif way in OTHERS:
            name = f"embeddings:{EMBEDDINGS}" if way == "embeddings" else way
            done = await make_method(name, reader, config)(asked.question, TextSource(asked.text))
            row["answer"] = done.final
        else:
            agent = create_memagent(reader, config=config, tokenizer=tokenizer)
            out = await agent.ainvoke({"question": asked.question, "document": asked.text})
            kept = ("answer", "memory", "found", "warnings", "how", "coverage")
            row |= {key: out[key] for key in kept}
    except MemAgentError as error:
        row |= {"answer": "", "error": repr(error)}
    row["seconds"] = perf_counter() - started
    counts = used.usage_metadata.values()
    row["usage"] = [sum(one[of] for one in counts) for of in ("input_tokens", "output_tokens")]
    return row


async def llama_index(
    model: BaseChatModel, config: ReadingConfig, asked: Asked, tokenizer: Tokenizer | None
) -> str:
    """Answer by LlamaIndex's refine, within the window that a reading has."""
    from llama_index_model import refine

    counter, reply = tokenizer or EstimatingTokenizer(), config.answer_tokens
    cut = chunks(TextSource(asked.text), tokenizer=counter, chunk_tokens=config.chunk_tokens)
    window = config.chunk_tokens + config.memory_tokens + reply + 400
    parts = [chunk.text for chunk in cut]
    return await refine(model, asked.question, parts, counter.count, window=window, reply=reply)


def grade(row: dict[str, Any]) -> dict[str, float]:
    """Return whether an answer is right, is flagged as not found, and is made up."""
    answer, wanted = row["answer"] or "", row["answers"]
    says = row["found"] is False or says_not_found(answer) or not answer
    right = (all if row.get("every") else any)(holds(answer, one) for one in wanted)
    return {
        "right": float(right and row["kind"] == "answered"),
        "in memory": float(any(holds(row["memory"], one) for one in wanted)),
        "says so": float(says),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print a line for each model, set, kind, and way."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        key = (row["model"], row["set"], row["passages"], row["kind"], row["half"])
        groups[*key, row["chunk_tokens"], f"{row['way']} {row['tag']}".strip()][row["name"]] = row
    names = ("model", "set", "passages", "kind", "half", "chunk", "way", "n", "right")
    names += ("than reading", "in memory", "says so", "right, but flagged", "errors")
    print_head(*names, "tokens in", "tokens out", "seconds on two cores, for each right answer")
    for key, group in sorted(groups.items()):
        base = groups.get((*key[:-1], "reading"), {})
        grades = {name: grade(row) for name, row in group.items()}
        right, memory, says = (
            [one[of] for one in grades.values()] for of in ("right", "in memory", "says so")
        )
        pairs = [
            (grade(base[name])["right"], grades[name]["right"]) for name in grades & base.keys()
        ]
        against = difference(*zip(*pairs, strict=True)) if pairs else ""
        lost = sum(one["right"] * one["says so"] for one in grades.values())
        usage = [fmean(row["usage"][at] for row in group.values()) for at in range(2)]
        seconds = usage[0] / READS + usage[1] / WRITES
        cells = [*key, len(group), in_percent(right, 0), against, in_percent(memory, 0)]
        failed = sum(bool(row["error"]) for row in group.values())
        cells += [in_percent(says, 0), f"{lost:g}", failed, *(f"{one:,.0f}" for one in usage)]
        cells += [f"{seconds / fmean(right):,.0f}" if any(right) else ""]
        print_row(*cells)


async def run(given: argparse.Namespace) -> None:
    """Ask what FILE does not have yet."""
    file = given.files[0]
    keys = ("model", "way", "tag", "set", "kind", "passages", "chunk_tokens", "name")
    done = {tuple(row[key] for key in keys) for row in read_rows(file)}
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    name = Path(given.model).name
    tokenizer = load_tokenizer(given.tokenizer) if given.tokenizer else None
    prompts = Prompts.from_file(given.prompts) if given.prompts else None
    turns = asyncio.Semaphore(given.at_once)

    async def one(way: str, group: str, asked: Asked) -> None:
        about = (name, way, given.tag, group, asked.kind, given.passages, given.chunk_tokens)
        async with turns:
            if (*about, asked.name) in done:
                return
            config = ReadingConfig(
                chunk_tokens=given.chunk_tokens,
                memory_tokens=given.memory_tokens,
                answer_tokens=64,
                **WAYS[way],
            )
            own = prompts if way == "published" else None
            row = await read(model, config, way, asked, own, tokenizer)
        row = {**dict(zip(keys, (*about, asked.name), strict=True)), "half": asked.half, **row}
        about = {"question": asked.question, "answers": asked.answers, "every": asked.every}
        append_row(file, row | about)

    data = Path(os.environ["MEMAGENT_DATA"])
    jobs, room = [], given.chunk_tokens + given.memory_tokens
    for group in given.sets.split(","):
        for kind in given.kinds.split(","):
            every = questions(data, group, kind, given.passages, room)
            fitting = (asked for asked in every if given.half in {"both", asked.half})
            chosen = islice(fitting, given.samples)
            jobs += [one(way, group, asked) for asked in chosen for way in given.ways.split(",")]
    await asyncio.gather(*jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2])
    parser.add_argument("files", type=Path, nargs="+", help="one, or several with --report")
    parser.add_argument("--model", help="model string, such as hf:FOLDER")
    parser.add_argument("--report", action="store_true", help="print the table of what is there")
    parser.add_argument("--tokenizer", help="the model's: a folder, or a hub id")
    parser.add_argument("--base-url", help="URL of the server of an openai: model")
    parser.add_argument("--ways", default="reading,whole,bm25", help=", ".join(WAYS))
    parser.add_argument("--sets", default="nq", help=", ".join(SETS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--half", default="report", choices=("tune", "report", "both"))
    parser.add_argument("--samples", type=int, default=20, help="questions of each kind")
    parser.add_argument("--passages", type=int, default=6, help="NQ passages in a document")
    parser.add_argument("--chunk-tokens", type=int, default=300)
    parser.add_argument("--memory-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path, help="prompts of the way `published`")
    parser.add_argument("--tag", default="", help="name of a change, for runs before and after")
    parser.add_argument("--at-once", type=int, default=1, help="readings at the same time")
    given = parser.parse_args()
    if given.report:
        report([row for file in given.files for row in read_rows(file)])
    elif given.model is None:
        parser.error("--model is missing")
    else:
        asyncio.run(run(given))


if __name__ == "__main__":
    main()
