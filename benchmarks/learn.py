"""Does a reader learn what to keep, and does it hold for documents 110 times as long? `make learn`.

Each seed makes a small model, warms it up in the format alone (`tiny_reader.py`), and trains it
from there in three ways: by the online loop through the reading graph; by the same loop with the
advantage on the last conversation alone; and supervised, on the right notes after each section,
for as much of the processor's time as the loop took. Documents have 4 sections there. All four
models are then asked about documents up to 256 times as long, in words that none has ever seen.

Each figure is a row of `OUT/rows.jsonl`, written when it is known. A run that was stopped goes on
with what is missing; `--report` makes table and plot of the rows so far.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import shutil
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import tiny_reader
import torch
from intervals import difference, in_percent
from matplotlib.figure import Figure
from measurement import Row, append_row, read_rows
from tiny_reader import (
    END,
    GO,
    HELD_OUT,
    PROMPTS,
    SECTION,
    TRAINING,
    VOCABULARY,
    make_tokenizer,
    sample,
)
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from memagent_graph import ReadingConfig
from memagent_graph.evaluation.run import in_markdown
from memagent_graph.evaluation.samples import mean_score
from memagent_graph.models.transformers import DecodingRow, decode
from memagent_graph.rl.grpo import TrainingSettings, exact
from memagent_graph.rl.training import Training
from memagent_graph.text.chunks import last_sentence_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.traces import Rollout

WAYS = {
    "before": "before",
    "ours": "GRPO, all conversations",
    "labels": "supervised, right labels",
    "last": "GRPO, last conversation alone",
}
TASKS = {1: "one hop", 2: "two hops"}
LONG = 110
TRAINED_ON = 4
"""Sections of a document to learn from."""
TIMES = {1: 400, LONG: 400, 4: 400, 16: 400, 256: 60}
"""How many times as long the documents are that are asked about, and how many of them."""
BUDGETS = {"memory_tokens": tiny_reader.LONGEST + 1, "answer_tokens": 2}
READING = ReadingConfig(chunk_tokens=SECTION, question_tokens=4, **BUDGETS)
SEED = 1_000_000


FIRST_WAYS = ("before", "ours")
FIRST = {"iterations": 120, "decay_steps": 480}
"""Settings of a first reader, which is to be there within ten minutes."""
ASKED_HELD_OUT = 64
"""Questions of the evaluations within a run."""


def question(index: int, seed: int) -> Sample:
    """What the loop asks: first what evaluations ask, then what it learns from."""
    words = HELD_OUT if index < ASKED_HELD_OUT else TRAINING
    hops = 1 + index % 2
    return sample(index, hops=hops, chunks=TRAINED_ON, seed=seed, words=words)


def last_alone(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Leave only the last conversation of each rollout to be trained on."""
    return [replace(one, conversations=one.conversations[-1:]) for one in rollouts]


SETTINGS = {
    "iterations": 240,
    "questions": 16,
    "group_size": 8,
    "updates": 4,
    "refills": 1,
    "scale_advantages": True,
    "learning_rate": 5e-4,
    "warmup_steps": 10,
    "decay_steps": 960,
    "clip_high": 0.28,
    "kl_weight": 0.0,
    "token_budget": 8192,
    "evaluate_every": 10,
    "held_out": ASKED_HELD_OUT,
    "save_every": 40,
    "engine_options": {"max_batch": 256},
    "chunk_tokens": SECTION,
    **BUDGETS,
}
"""Of the online runs."""


class Run:
    """What one seed comes to, written row by row to a file that several seeds may share.

    Args:
        seed: of everything.
        out: folder of rows and models.
        fields: change the settings of the online runs.
        steps: of the warm-up, by stage; None for its own.
    """

    def __init__(
        self, seed: int, out: Path, *, steps: Mapping[str, int] | None = None, **fields: Any
    ) -> None:
        self.seed, self.folder, self._file = seed, out / f"seed{seed}", out / "rows.jsonl"
        self._steps, self._fields = steps or {}, fields
        self._samples = partial(question, seed=seed)

    def models(self, ways: Iterable[str] = WAYS) -> None:
        """Make all models, as far as they are not made yet."""
        for way in ways:
            self._once({"kind": "model", "way": way}, partial(self._make, way))

    def scores(self, times: Mapping[int, int], ways: Iterable[str] = WAYS) -> None:
        """Ask all models about so many documents of each length, as far as they were not asked."""
        for (at, documents), way, hops in product(times.items(), ways, TASKS):
            about = {"way": way, "hops": hops, "times": at, "documents": documents}
            self._once({"kind": "score", **about}, partial(self._score, way, hops, at, documents))

    def shares(self, way: str, times: int) -> dict[str, float]:
        """Right answers of one model at one length, by task."""
        found = self._about({"kind": "score", "way": way, "times": times})
        return {f"{row['hops']}-hop": round(fmean(row["right"]), 3) for row in found}

    def _about(self, about: Row) -> list[Row]:
        """The rows that say this."""
        wanted = {"seed": self.seed, **about}
        return [row for row in read_rows(self._file) if wanted.items() <= row.items()]

    def _once(self, about: Row, measure: Callable[[], Row]) -> None:
        """Add a row of what is measured, unless there is one about that."""
        if self._about(about):
            return
        row = {"seed": self.seed, **about, **measure()}
        append_row(self._file, row)
        print({k: fmean(v) if isinstance(v, list) else v for k, v in row.items()}, flush=True)

    def _score(self, way: str, hops: int, times: int, documents: int) -> Row:
        samples = held_out(hops, times, documents, seed=self.seed)
        return {"right": score(self.folder / way / "model", samples)}

    def _make(self, way: str) -> Row:
        """Make a model in an empty folder; the seconds that it took."""
        folder = self.folder / way
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started, spent = perf_counter(), process_time()
        {"before": self._warm, "labels": self._label}.get(way, self._learn)(folder)
        return {"seconds": perf_counter() - started, "processor": process_time() - spent}

    def _warm(self, folder: Path) -> None:
        torch.manual_seed(self.seed)
        model = tiny_reader.make_model()
        tiny_reader.warm_up(model, seed=self.seed, **self._steps)
        tiny_reader.save(model, folder / "model")

    def _learn(self, folder: Path) -> None:
        """Train from the warm-up by the loop."""
        prompts = folder / "prompts.json"
        prompts.write_text(PROMPTS.model_dump_json(), "utf-8")
        given = {"model": str(self.folder / "before" / "model"), "out": folder, "seed": self.seed}
        chosen = TrainingSettings(**SETTINGS | given | {"prompts": prompts} | self._fields)
        training = Training(chosen, questions=self._samples)
        if folder.name == "last":
            step = training.trainer.step
            training.trainer.step = lambda rollouts: step(last_alone(rollouts))
        asyncio.run(training.run(tell))

    def _label(self, folder: Path) -> None:
        """Supervised, for as much of the processor's time as the loop took."""
        [ours] = self._about({"kind": "model", "way": "ours"})
        warm = self.folder / "before" / "model"
        model = AutoModelForCausalLM.from_pretrained(warm, dtype="float32")
        samples = map(self._samples, count(ASKED_HELD_OUT))
        tiny_reader.train_on_labels(model, samples, seconds=ours["processor"])
        tiny_reader.save(model, folder / "model")


def held_out(hops: int, times: int, count: int, *, seed: int) -> list[Sample]:
    """Questions of evaluations: the same for all models of a seed, and others for other seeds."""
    about = {"hops": hops, "chunks": times * TRAINED_ON, "seed": SEED + seed}
    return [sample(index, words=HELD_OUT, **about) for index in range(count)]


def score(model: Path, samples: Sequence[Sample]) -> list[float]:
    """1 for each question that is answered right, else 0."""
    answers = read(model, samples)
    return [exact(answer, one.answers) for answer, one in zip(answers, samples, strict=True)]


def read(model: Path, samples: Sequence[Sample]) -> list[str]:
    """The answers to questions over documents of as many sections, read side by side.

    They are those that the reading graph comes to with the reader that training has, which a
    test compares; here a section is one call for all documents, without the graph's own cost.
    """
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    backend, ends = make_tokenizer().backend_tokenizer, frozenset([ids[END]])

    def reply(prompts: Sequence[str], tokens: int) -> list[DecodingRow]:
        rows = [
            DecodingRow([*(ids[word] for word in prompt.split()), ids[GO]], tokens, 0.0)
            for prompt in prompts
        ]
        decode(loaded, backend, ends, rows)
        return rows

    questions, notes = [one.question for one in samples], [""] * len(samples)
    budget = BUDGETS["memory_tokens"]
    for pieces in zip(*(one.pieces() for one in samples), strict=True):
        prompts = [
            PROMPTS.for_update(question, known, piece, budget)
            for question, known, piece in zip(questions, notes, pieces, strict=True)
        ]
        written = [_whole(row) for row in reply(prompts, budget)]
        # An empty reply leaves the notes as they are.
        notes = [new or old for new, old in zip(written, notes, strict=True)]
    prompts = [PROMPTS.for_answer(*pair) for pair in zip(questions, notes, strict=True)]
    return [row.text.strip() for row in reply(prompts, BUDGETS["answer_tokens"])]


def _whole(row: DecodingRow) -> str:
    """The notes of a reply; of one that was cut off, without the word that may be in part."""
    text = row.text.strip()
    return text if row.finish_reason == "stop" else text[: last_sentence_end(text)].rstrip() or text


def tell(line: Mapping[str, float]) -> None:
    """One line for every evaluation."""
    if "held_out_reward" in line:
        print(f"  iteration {line['iteration']}: {line['held_out_reward']:.3f}", flush=True)


def prepare() -> None:
    """Make this process ready to train and to read."""
    torch.set_num_threads(1)  # with so small a model a second one costs more than it brings
    # Looking for garbage in all that is imported, and often, takes a quarter of the time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    # A model this small is loaded at once, and its tied weights are meant to be saved once.
    disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)


def write_report(rows: Sequence[Row], folder: Path) -> str:
    """Draw `extrapolation.png` into a folder; return the tables in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = [row for row in rows if row["kind"] == "score"]
    draw_lengths(scores, folder / "extrapolation.png")
    return "\n".join(map(in_markdown, [by_length(scores), differences(scores)]))


def by_length(scores: Sequence[Row]) -> list[list[str]]:
    lengths = sorted({row["times"] for row in scores})
    table = [["task", "reader", *(f"{times}x" for times in lengths)]]
    for hops, task in TASKS.items():
        for way, name in WAYS.items():
            cells = [right_answers(scores, way=way, hops=hops, times=times) for times in lengths]
            table.append([task, name, *map(in_percent, cells)])
    return table


def differences(scores: Sequence[Row]) -> list[list[str]]:
    """What the goals are about, with intervals of the difference."""
    table = [["task", f"{WAYS['ours']}, less", "points (95%)"]]
    for hops, task in TASKS.items():
        ours = right_answers(scores, way="ours", hops=hops, times=LONG)
        for way in ("labels", "last", "before"):
            other = right_answers(scores, way=way, hops=hops, times=LONG)
            if ours and len(ours) == len(other):
                table.append([task, f"{WAYS[way]}, at {LONG}x", difference(other, ours)])
    return table


def right_answers(rows: Iterable[Row], **about: object) -> list[float]:
    """The scores of all rows that are about that, seed by seed."""
    found = [row for row in rows if about.items() <= row.items()]
    return [one for row in sorted(found, key=lambda row: row["seed"]) for one in row["right"]]


def draw_lengths(scores: Sequence[Row], path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (hops, task) in zip(figure.subplots(1, 2, sharey=True), TASKS.items(), strict=True):
        for way, name in WAYS.items():
            lengths = sorted(
                {row["times"] for row in scores if row["way"] == way and row["hops"] == hops}
            )
            found = [right_answers(scores, way=way, hops=hops, times=times) for times in lengths]
            means = [mean_score(right) for right in found]
            (line,) = axes.plot(lengths, [one.value for one in means], marker="o", label=name)
            low, high = [one.low for one in means], [one.high for one in means]
            axes.fill_between(lengths, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(
            xscale="log", xlabel="times as long as learned from", title=task, ylim=(-0.02, 1.02)
        )
        axes.set_xticks(places := sorted({row["times"] for row in scores}), places)
        axes.minorticks_off()
    figure.axes[0].set_ylabel("right answers")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--draw", type=Path, help="folder of the plot; that of --out by default")
    parser.add_argument("--report", action="store_true", help="measure nothing, and only report")
    parser.add_argument(
        "--first", action="store_true", help="train one reader, and say where its metrics are"
    )
    asked = parser.parse_args(arguments)
    prepare()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.first:
        run = Run(0, asked.out, **FIRST)
        run.models(FIRST_WAYS)
        run.scores({1: TIMES[1]}, FIRST_WAYS)
        shares = [run.shares(way, 1) for way in FIRST_WAYS]
        print(f"right answers before {shares[0]}, after {shares[1]}")
        print(f"metrics: {run.folder / 'ours' / 'metrics.jsonl'}")
        return
    for seed in () if asked.report else asked.seeds:
        run = Run(seed, asked.out)
        run.models()
        run.scores(TIMES)
    print(write_report(read_rows(asked.out / "rows.jsonl"), asked.draw or asked.out))


if __name__ == "__main__":
    main()
