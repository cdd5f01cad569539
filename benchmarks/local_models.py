"""python benchmarks/local_models.py FILE MODEL: ask a small model questions, in several ways.

Questions of the NQ and XQuAD files of MEMAGENT_DATA, of three kinds: `answered` has the passage
that answers, among others; `absent` has only the others; in `near` the document is about the same
thing and lacks the answer (NQ's own passage without the sentence that has it, or other paragraphs
of the XQuAD article). Each reading appends a JSON line to FILE, with all prompts and replies. A
reading that FILE has is not repeated, so the same command continues a run that was stopped.
Questions are split into halves by a hash: `tune` is for choosing settings, `report` for figures.
The texts are not ours: FILE stays out of the repository. FILE --report prints a table, with
intervals of 95%.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.callbacks import BaseCallbackHandler

from memagent_graph import Prompts, ReadingConfig, create_memagent
from memagent_graph.errors import MemAgentError
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.scores import holds, mean_score
from memagent_graph.evidence.statements import statements
from memagent_graph.models.resolve import resolve_model
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.replies import says_not_found
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

SEED = 37
WAYS: dict[str, dict[str, Any]] = {
    "reading": {},
    "gate": {"update_gate": True},
    "exit": {"exit": "model"},
    "look-back": {"recalls": 2},
    "segments": {"segments": 3},
    "rounds": {"segments": 2, "rounds": 2},
    "skim": {"skim": "lexical"},
    "published": {"exact_cuts": True},
    "whole": {},
    "bm25": {},
}
"""Settings of each way; `published` takes its prompts from --prompts."""
COUNTS = ("calls", "input_tokens", "output_tokens")
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


class Trace(BaseCallbackHandler):
    """Keeps the prompts and replies of one reading, in the order of its calls."""

    def __init__(self) -> None:
        self._calls: dict[UUID, list[str]] = {}

    @property
    def calls(self) -> list[list[str]]:
        """Prompt and reply of each call; a call that failed has no reply."""
        return [*self._calls.values()]

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **_: object,
    ) -> None:
        self._calls[run_id] = [messages[0][0].text]

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: object) -> None:
        self._calls[run_id].append(response.generations[0][0].text)


def questions(data: Path, kind: str, passages: int) -> Iterator[Asked]:
    """Yield the questions of a kind, always in the same order.

    Args:
        data: folder of the files.
        kind: one of `KINDS`.
        passages: number of NQ passages in a document.
    """
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


def has_any(text: str, answers: list[str]) -> bool:
    """Whether a text has one of the answers, in any case."""
    return any(answer.casefold() in text.casefold() for answer in answers)


async def read(
    model: BaseChatModel, config: ReadingConfig, way: str, asked: Asked, prompts: Prompts | None
) -> dict[str, Any]:
    """Ask one question in one way, and return what became of it."""
    trace, started = Trace(), perf_counter()
    model = model.model_copy(update={"callbacks": [trace]})
    reader = ChatReader(model, config=config, prompts=prompts)
    row: dict[str, Any] = {"found": None, "warnings": [], "error": ""}
    try:
        if way in {"whole", "bm25"}:
            done = await make_method(way, reader, config)(asked.question, TextSource(asked.text))
            row |= {
                "answer": done.final,
                "memory": "",
                "usage": [getattr(done.usage, key) for key in COUNTS],
            }
        else:
            agent = create_memagent(reader, config=config)
            out = await agent.ainvoke({"question": asked.question, "document": asked.text})
            row |= {key: out[key] for key in ("answer", "memory", "found", "warnings")}
            row["usage"] = [out["usage"][key] for key in COUNTS]
    except MemAgentError as error:
        row |= {"answer": "", "memory": "", "error": repr(error), "usage": [0, 0, 0]}
    row["seconds"] = perf_counter() - started
    return {**row, "trace": trace.calls}


def grade(row: dict[str, Any]) -> dict[str, bool]:
    """Return whether an answer is right, is flagged as not found, and is made up."""
    answer, right = row["answer"] or "", any(holds(row["answer"] or "", a) for a in row["answers"])
    denies = says_not_found(answer) or not answer
    return {
        "right": right and row["kind"] == "answered",
        "in memory": any(holds(row["memory"], one) for one in row["answers"]),
        "says so": row["found"] is False or denies,
        "denies": denies,
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print a line for each model, kind, and way."""
    groups = defaultdict(list)
    for row in rows:
        key = (row["model"], row["kind"], row["way"], row["tag"], row["half"], row["passages"])
        groups[key].append(row)
    print(
        "| model | kind | way | half | passages | n | right | says so | right, but flagged "
        "| calls | tokens in | tokens out | seconds |\n|" + "---|" * 13
    )
    for (model, kind, way, tag, half, passages), group in sorted(groups.items()):
        grades = [grade(row) for row in group]
        right, says = (mean_score([one[key] for one in grades]) for key in ("right", "says so"))
        lost = sum(one["right"] and one["says so"] for one in grades)
        usage = [fmean(row["usage"][at] for row in group) for at in range(3)]
        seconds = fmean(row["seconds"] for row in group)
        cells = [model, kind, f"{way} {tag}".strip(), half, passages, len(group)]
        cells += [_percent(right), _percent(says), lost]
        cells += [f"{usage[0]:.1f}", f"{usage[1]:,.0f}", f"{usage[2]:,.0f}", f"{seconds:.0f}"]
        print("|", " | ".join(map(str, cells)), "|")


def _percent(mean: Any) -> str:
    return f"{100 * mean.value:.0f}% ({100 * mean.low:.0f} to {100 * mean.high:.0f})"


async def run(given: argparse.Namespace) -> None:
    """Ask what FILE does not have yet."""
    name = Path(given.model).name
    keys = ("model", "way", "tag", "kind", "passages", "name")
    done = {tuple(row[key] for key in keys) for row in recorded(given.file)}
    model = resolve_model(given.model, base_url=given.base_url, temperature=0.0)
    prompts = Prompts.from_file(given.prompts) if given.prompts else None
    turns = asyncio.Semaphore(given.at_once)

    async def one(way: str, asked: Asked) -> None:
        known = (name, way, given.tag, asked.kind, given.passages, asked.name)
        async with turns:
            if known in done:
                return
            config = ReadingConfig(
                chunk_tokens=given.chunk_tokens,
                memory_tokens=given.memory_tokens,
                answer_tokens=64,
                **WAYS[way],
            )
            row = await read(model, config, way, asked, prompts if way == "published" else None)
        row = {**dict(zip(keys, known, strict=True)), "half": asked.half, **row}
        row |= {"question": asked.question, "answers": asked.answers}
        with given.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")

    data = Path(os.environ["MEMAGENT_DATA"])
    for kind in given.kinds.split(","):
        every = questions(data, kind, given.passages)
        chosen = [asked for asked in every if given.half in {"both", asked.half}]
        jobs = [
            one(way, asked) for asked in chosen[: given.samples] for way in given.ways.split(",")
        ]
        await asyncio.gather(*jobs)


def recorded(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is no such file."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[2])
    parser.add_argument("file", type=Path)
    parser.add_argument("model", nargs="?", help="model string, such as hf:FOLDER")
    parser.add_argument("--report", action="store_true", help="print the table of what is there")
    parser.add_argument("--base-url", help="URL of the server of an openai: model")
    parser.add_argument("--ways", default="reading,whole,bm25", help=", ".join(WAYS))
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
        report(recorded(given.file))
    elif given.model is None:
        parser.error("MODEL is missing")
    else:
        asyncio.run(run(given))


if __name__ == "__main__":
    main()
