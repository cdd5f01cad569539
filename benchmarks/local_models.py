"""python benchmarks/local_models.py FILE MODEL: ask a small model questions, in several ways.

A set is NQ's questions (`nq`: the passage that answers among others), XQuAD's (`xquad`: the
paragraph among others of its article), both in the files of MEMAGENT_DATA. NQ's are of three kinds:
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
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.scores import holds
from memagent_graph.evidence.statements import statements
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.replies import says_not_found
from memagent_graph.readers.resolve import resolve_model
from memagent_graph.text.chunks import chunks
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
    "auto": {"how": "auto"},
    "gate": {"update_gate": True},
    "skim": {"skim": "lexical"},
    "published": {"exact_cuts": True},
    **{way: {} for way in OTHERS},
}
"""Settings of each way; `published` takes its prompts from --prompts."""
SETS = ("nq", "xquad")
READS, WRITES = 43, 15
"""Tokens a second that the model of 1.5B reads and writes on two cores."""
EMBEDDINGS = os.environ.get("EMBEDDINGS", "huggingface:all-MiniLM-L6-v2")
KINDS = ("answered", "absent", "near")


class Asked(NamedTuple):
    """One question of a document.

    Attributes:
        kind: whether the document has the answer: one of `KINDS`.
        name: the question's, in the file.
        text: the document.
        question: the question.
        answers: right answers; any is enough.
    """

    kind: str
    name: str
    text: str
    question: str
    answers: list[str]

    @property
    def half(self) -> str:
        """Whether it serves to choose settings or to report."""
        return ("tune", "report")[sha256(self.question.encode()).digest()[0] % 2]


def questions(data: Path, name: str, kind: str, passages: int) -> Iterator[Asked]:
    """Return the questions of a set and kind, always in the same order.

    A document has so many passages of NQ. XQuAD has answered questions alone.
    """
    if name == "nq":
        return nq(data, kind, passages)
    return xquad_answered(data) if kind == "answered" else iter(())


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


def xquad_answered(data: Path) -> Iterator[Asked]:
    """Yield a question of each paragraph, over five paragraphs of its article."""
    for number, paragraphs in enumerate(articles(data)):
        for own, paragraph in enumerate(paragraphs):
            first = max(0, min(own - own % 5, len(paragraphs) - 5))
            asked = paragraph["qas"][-1]
            text = "\n\n".join(one["context"] for one in paragraphs[first : first + 5])
            answers = [answer["text"] for answer in asked["answers"]]
            yield Asked("answered", f"xquad {number} {own}", text, asked["question"], answers)


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
    right = any(holds(answer, one) for one in wanted)
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
        append_row(file, row | {"question": asked.question, "answers": asked.answers})

    data = Path(os.environ["MEMAGENT_DATA"])
    jobs = []
    for group in given.sets.split(","):
        for kind in given.kinds.split(","):
            every = questions(data, group, kind, given.passages)
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
