"""python benchmarks/local_models.py FILE MODEL: ask a small model questions, in several ways.

A set is NQ's questions (`nq`: the passage that answers among others), XQuAD's (`xquad`: the
paragraph among others of its article), HotpotQA's with its distractors (`hotpotqa`), or RULER's
samples of 8K (`ruler`), all in the files of MEMAGENT_DATA. NQ's are of three kinds: `answered`;
`absent` has only the other passages; in `near` the document is about the same thing and lacks the
answer (NQ's own passage without the sentence that has it, or other paragraphs of the XQuAD
article). Each reading appends a JSON line to FILE, with all replies. A reading that FILE has is not
repeated, so the same command continues a run that was stopped. Questions are split into halves by a
hash: `tune` is for choosing settings, `report` for figures. The texts are not ours: FILE stays out
of the repository. FILE --report prints a table, with intervals of 95%, and each way's difference
from the way `reading` on the same questions.
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
from statistics import fmean, stdev
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.callbacks import BaseCallbackHandler

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.errors import MemAgentError
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.scores import holds, mean_score
from memagent_graph.evaluation.tasks.benchmarks import ruler_tasks
from memagent_graph.evidence.statements import statements
from memagent_graph.models.resolve import resolve_model
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.replies import says_not_found
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

    from memagent_graph.text.tokens import Tokenizer

SEED = 37
OTHERS = ("whole", "bm25", "embeddings", "refine", "map_reduce", "li-refine", "li-tree_summarize")
WAYS: dict[str, dict[str, Any]] = {
    "reading": {},
    "auto": {"how": "auto"},
    "notes": {"answer_passages": 0},
    "gate": {"update_gate": True},
    "segments": {"segments": 3},
    "skim": {"skim": "lexical"},
    "published": {"exact_cuts": True},
    **{way: {} for way in OTHERS},
}
"""Settings of each way; `published` takes its prompts from --prompts."""
SETS = ("nq", "xquad", "hotpotqa", "ruler")
READS, WRITES = 43, 15
"""Tokens a second that the model of 1.5B reads and writes on two cores."""
MOST_FEW = 8
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
        every: whether all of them must be given.
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


class Trace(BaseCallbackHandler):
    """Keeps the replies of one reading, in the order of its calls."""

    def __init__(self) -> None:
        self._calls: dict[UUID, list[Any]] = {}
        self._read = self._written = 0

    @property
    def usage(self) -> list[int]:
        """Calls, and tokens of their prompts and replies."""
        return [len(self._calls), self._read, self._written]

    @property
    def calls(self) -> list[list[Any]]:
        """The reply of each call, and how long its prompt was; a call that failed has no reply."""
        return [*self._calls.values()]

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **_: object,
    ) -> None:
        self._calls[run_id] = [len(messages[0][0].text)]

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: object) -> None:
        generation = response.generations[0][0]
        self._calls[run_id].append(generation.text)
        used = getattr(generation, "message", None)
        if used is not None and (counts := used.usage_metadata):
            self._read += counts["input_tokens"]
            self._written += counts["output_tokens"]


def questions(data: Path, name: str, kind: str, passages: int) -> Iterator[Asked]:
    """Return the questions of a set and kind, always in the same order.

    Args:
        data: folder of the files.
        name: one of `SETS`.
        kind: one of `KINDS`; the others than NQ have answered ones alone.
        passages: number of NQ passages, or XQuAD paragraphs, in a document.
    """
    if name == "nq":
        return nq(data, kind, passages)
    if kind != "answered":
        return iter(())
    return {"xquad": xquad_answered, "hotpotqa": hotpotqa, "ruler": ruler}[name](data)


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


def xquad(data: Path) -> Iterator[Asked]:
    """Yield a question of each paragraph, over the other paragraphs of its article."""
    articles = json.loads((data / "xquad.en.json").read_text("utf-8"))["data"]
    for number, article in enumerate(articles):
        texts = [paragraph["context"] for paragraph in article["paragraphs"]]
        for own, paragraph in enumerate(article["paragraphs"]):
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
    articles = json.loads((data / "xquad.en.json").read_text("utf-8"))["data"]
    for number, article in enumerate(articles):
        for own, paragraph in enumerate(article["paragraphs"]):
            first = max(0, min(own - own % 5, len(article["paragraphs"]) - 5))
            asked = paragraph["qas"][-1]
            texts = [one["context"] for one in article["paragraphs"][first : first + 5]]
            answers = [answer["text"] for answer in asked["answers"]]
            name = f"xquad {number} {own}"
            yield Asked("answered", name, "\n\n".join(texts), asked["question"], answers)


def hotpotqa(data: Path) -> Iterator[Asked]:
    """Yield the questions of two steps, each over all of its paragraphs."""
    for row in json.loads((data / "hotpotqa_distractor.json").read_text("utf-8")):
        text = "\n\n".join(f"{title}\n{''.join(said)}" for title, said in row["context"])
        yield Asked("answered", f"hotpotqa {row['_id']}", text, row["question"], [row["answer"]])


def ruler(data: Path) -> Iterator[Asked]:
    """Yield the samples of RULER's tasks, a task at a time."""
    for task in ruler_tasks(data / "ruler_8k.jsonl"):
        for index in range(task.count):
            sample = task.sample(8_192, index, seed=0, tokenizer=EstimatingTokenizer())
            text = "".join(sample.pieces())
            answers = [*sample.answers]
            yield Asked("answered", sample.id, text, sample.question, answers, every=True)


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
    trace, started = Trace(), perf_counter()
    model = model.model_copy(update={"callbacks": [trace]})
    reader = ChatReader(model, config=config, prompts=prompts, tokenizer=tokenizer)
    row: dict[str, Any] = {"found": None, "warnings": [], "error": "", "memory": ""}
    try:
        if way.startswith("li-"):
            row["answer"] = await llama_index(model, config, way, asked, tokenizer)
        elif way in OTHERS:
            name = f"embeddings:{EMBEDDINGS}" if way == "embeddings" else way
            done = await make_method(name, reader, config)(asked.question, TextSource(asked.text))
            row |= {"answer": done.final, "context": has_any(done.context, asked.answers)}
        else:
            agent = create_memagent(reader, config=config, tokenizer=tokenizer)
            out = await agent.ainvoke({"question": asked.question, "document": asked.text})
            kept = ("answer", "memory", "found", "warnings", "how", "coverage")
            row |= {key: out[key] for key in kept}
    except MemAgentError as error:
        row |= {"answer": "", "error": repr(error)}
    row["seconds"] = perf_counter() - started
    row["usage"] = trace.usage
    return {**row, "trace": trace.calls}


async def llama_index(
    model: BaseChatModel,
    config: ReadingConfig,
    way: str,
    asked: Asked,
    tokenizer: Tokenizer | None,
) -> str:
    """Answer by LlamaIndex's own synthesizer, within the window that a reading has."""
    from llama_index.core import Settings
    from llama_index.core.response_synthesizers import get_response_synthesizer
    from llama_index_model import Passed

    counter = tokenizer or EstimatingTokenizer()
    Settings.tokenizer = lambda text: range(counter.count(text))
    room = config.chunk_tokens + config.memory_tokens + config.answer_tokens + 400
    passed = Passed(asks=model, window=room, reply=config.answer_tokens)
    cut = chunks(TextSource(asked.text), tokenizer=counter, chunk_tokens=config.chunk_tokens)
    synthesizer = get_response_synthesizer(llm=passed, response_mode=way.removeprefix("li-"))
    said = await synthesizer.aget_response(asked.question, [chunk.text for chunk in cut])
    return str(said)


def grade(row: dict[str, Any]) -> dict[str, float]:
    """Return whether an answer is right, is flagged as not found, and is made up."""
    answer, wanted = row["answer"] or "", row["answers"]
    gather = fmean if row.get("every") else max
    says = row["found"] is False or says_not_found(answer) or not answer
    right = gather(float(holds(answer, one)) for one in wanted)
    return {
        "right": right * (row["kind"] == "answered"),
        "in memory": gather(float(holds(row["memory"], one)) for one in wanted),
        "says so": float(says),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print a line for each model, set, kind, and way."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        key = (row["model"], row["set"], row["passages"], row["kind"], row["half"])
        groups[*key, row["chunk_tokens"], f"{row['way']} {row['tag']}".strip()][row["name"]] = row
    print(
        "| model | set | passages | kind | half | chunk | way | n | right | than reading "
        "| in memory | says so | right, but flagged | errors | calls | tokens in | tokens out "
        "| seconds on two cores, for each right answer |\n|" + "---|" * 18
    )
    for key, group in sorted(groups.items()):
        base = groups.get((*key[:-1], "reading"), {})
        grades = {name: grade(row) for name, row in group.items()}
        right, memory, says = (
            mean_score([one[of] for one in grades.values()])
            for of in ("right", "in memory", "says so")
        )
        pairs = [
            grades[name]["right"] - grade(base[name])["right"] for name in grades & base.keys()
        ]
        lost = sum(one["right"] * one["says so"] for one in grades.values())
        usage = [fmean(row["usage"][at] for row in group.values()) for at in range(3)]
        seconds = usage[1] / READS + usage[2] / WRITES
        cells = [*key, len(group), _percent(right), _difference(pairs), _percent(memory)]
        cells += [_percent(says), f"{lost:g}", sum(bool(row["error"]) for row in group.values())]
        cells += [f"{usage[0]:.1f}", f"{usage[1]:,.0f}", f"{usage[2]:,.0f}"]
        cells += [f"{seconds / right.value:,.0f}" if right.value else ""]
        print("|", " | ".join(map(str, cells)), "|")


def _percent(mean: Any) -> str:
    return f"{100 * mean.value:.0f}% ({100 * mean.low:.0f} to {100 * mean.high:.0f})"


def _difference(pairs: list[float]) -> str:
    """The mean of paired differences, in points, with its interval."""
    if len(pairs) < MOST_FEW or not any(pairs):
        return ""
    mean, half = fmean(pairs), 1.96 * stdev(pairs) / len(pairs) ** 0.5
    return f"{100 * mean:+.1f} ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})"


async def run(given: argparse.Namespace) -> None:
    """Ask what FILE does not have yet."""
    file = given.files[0]
    keys = ("model", "way", "tag", "set", "kind", "passages", "chunk_tokens", "name")
    done = {tuple(row[key] for key in keys) for row in recorded(file)}
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
                answer_tokens=128 if asked.every else 64,
                **WAYS[way],
            )
            own = prompts if way == "published" else None
            row = await read(model, config, way, asked, own, tokenizer)
        row = {**dict(zip(keys, (*about, asked.name), strict=True)), "half": asked.half, **row}
        row |= {"question": asked.question, "answers": asked.answers, "every": asked.every}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")

    data = Path(os.environ["MEMAGENT_DATA"])
    number, shards = map(int, given.shard.split("/"))
    jobs = []
    for group in given.sets.split(","):
        for kind in given.kinds.split(","):
            every = questions(data, group, kind, given.passages)
            fitting = (asked for asked in every if given.half in {"both", asked.half})
            chosen = [*islice(fitting, given.samples)][number::shards]
            jobs += [one(way, group, asked) for asked in chosen for way in given.ways.split(",")]
    await asyncio.gather(*jobs)


def recorded(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is no such file."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


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
    parser.add_argument("--shard", default="0/1", help="one of several processes: number/processes")
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
        report([row for file in given.files for row in recorded(file)])
    elif given.model is None:
        parser.error("--model is missing")
    else:
        asyncio.run(run(given))


if __name__ == "__main__":
    main()
