"""Does a reader learn when not to write, when to stop and when to look back, from answers alone?

The two pairs of a two-hop question stand in either order, and none is taken back. A warmed-up
reader may leave its notes with a word, end the reading, or ask for a passage; what it is shown
uses all of these at random. It is trained by its answers, less a share of what right ones cost in
calls and written tokens; no label says where evidence is. Two others are there to compare. One
may only look back: it rewrites its notes at each section, to the end, and is trained by its
answers. One has the gates, and the rewards of GRU-Mem, which are told where evidence is. Rows,
report and resuming are as in `learn.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from learn import Run, settings
from learn_rows import Rows, make_anew, prepare, read_rows, tell
from learn_scores import SEED
from matplotlib.figure import Figure
from tiny_language import (
    HELD_OUT,
    NOTHING,
    SECTION,
    TRAINING,
    misleading,
    notes_after,
    sample,
    write_section,
)
from tiny_lessons import Example, ask
from tiny_reader import PROMPTS, make_tokenizer, save, train
from transformers import AutoModelForCausalLM

from memagent_graph import Prompts, ReadingConfig
from memagent_graph.evaluation.report import in_markdown
from memagent_graph.evaluation.scores import mean_cost, mean_score
from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.prompts import UNCHANGED, LookBack
from memagent_graph.rl.loop import Journal
from memagent_graph.rl.rewards import exact
from memagent_graph.rl.rollouts import RolloutRunner
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from learn_rows import Row

    from memagent_graph.evaluation.samples import Sample

TOLD = Prompts(
    update=PROMPTS.update,
    answer=PROMPTS.answer,
    unchanged=" unchanged",
    enough=" ENOUGH:",
    look_back=" LOOK BACK:",
)
ENOUGH, BACK = "\nENOUGH:", "\nLOOK BACK:"
LEARNED_ON, ASKED_ON = 8, 20
"""Sections of the documents."""
BUDGETS = {"memory_tokens": 6, "answer_tokens": 2}
PLAIN: Row = {"recalls": 1}
GATES: Row = {"recalls": 1, "update_gate": True, "exit": "model"}
COST = {"calls": 0.2, "written": 0.2}
WAYS: dict[str, tuple[Row, Row]] = {
    "plain": (PLAIN, {}),
    "gated": (GATES, {"shaping": COST}),
    "told": (GATES, {"shaping": {"exit": 1.0, "update": 1.0}, "step_weight": 0.1}),
}
"""How each reads, and what it is rewarded for beside its answers."""
ASKED_HELD_OUT, BATCH = 64, 32


def question(index: int, seed: int) -> Sample:
    """What the loop asks: first what evaluations ask, then what it learns from."""
    words = HELD_OUT if index < ASKED_HELD_OUT else TRAINING
    return asked(index, LEARNED_ON, seed, words=words)


def asked(index: int, chunks: int, seed: int, **fields: Any) -> Sample:
    """A two-hop question, told in either order."""
    return sample(index, hops=2, chunks=chunks, seed=seed, either_order=True, **fields)


def lessons(rng: random.Random) -> Iterator[Example]:
    """Batches of like length: some with a passage that was asked for, which is long."""
    while True:
        looked = rng.random() < 0.2
        for _ in range(BATCH):
            yield answer(rng) if rng.random() < 0.1 else show(rng, looked=looked)


def show(rng: random.Random, *, looked: bool) -> Example:
    """One update with the gates or without; what is not looked up is at random."""
    gated = rng.random() < 0.5
    town, middle, thing = [*rng.sample(TRAINING.towns, 2), rng.choice(TRAINING.things)]
    kinds = [[town, middle], [town, middle], [town, middle, thing], [], [town, NOTHING]]
    notes = rng.choice(kinds[:3] if looked else kinds)
    pairs, recalled = {}, ()
    if rng.random() < 0.6:
        about = rng.choice([(town, middle), (middle, thing)])
        pairs = dict([about])
    text, other = _write(rng, [town, middle], pairs)
    if looked:
        shown = rng.randint(0, LEARNED_ON - 2)
        passed = [_write(rng, [town, middle], {})[0] for _ in range(LEARNED_ON - 1)]
        if rng.random() < 0.7:
            passed[shown] = _write(rng, [town, middle], {middle: thing})[0]
            pairs = {**pairs, middle: thing}
        recalled = (("line 1", "\n".join(passed)),)
    prompt = TOLD.for_update(
        town,
        " ".join(notes),
        text,
        BUDGETS["memory_tokens"],
        gate=gated,
        exit_gate=gated,
        recalled=recalled,
        look_back=LookBack(1),
    )
    right = notes_after(town, notes, {**other, **pairs})
    body = right
    if gated and right == (notes or [town, NOTHING]):
        body = rng.choice([right, [UNCHANGED]])
    tails = (
        [[]]
        if {NOTHING, UNCHANGED} & {*body}
        else [[], [BACK, body[-1]], *([[ENOUGH, body[-1]]] * gated)]
    )
    return ask(prompt.split(), [*body, *rng.choice(tails)])


def answer(rng: random.Random) -> Example:
    """An answer from notes."""
    town, middle, thing = [*rng.sample(TRAINING.towns, 2), rng.choice(TRAINING.things)]
    prompt = TOLD.for_answer(town, f"{town} {middle} {thing}")
    return ask(prompt.split(), [thing])


def _write(
    rng: random.Random, chain: Sequence[str], pairs: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """A section with these pairs, and what it says of other towns."""
    other, denied = misleading(rng, TRAINING, chain)
    words = write_section(rng, [*other.items(), *denied, *pairs.items()])
    return " ".join(words), other


class GateRun:
    """What one seed comes to.

    Args:
        seed: of everything.
        out: folder of rows and models.
        steps: of what the warm-up shows of gates.
        begun: of the warm-up before, by stage; None for its own.
        fields: change the settings of the online runs.
    """

    def __init__(
        self,
        seed: int,
        out: Path,
        *,
        steps: int = 1000,
        begun: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> None:
        self._begun = Run(seed, out, steps=begun)
        self.seed, self.folder, self._steps = seed, out / f"gates{seed}", steps
        self._rows, self._fields = Rows(out / "gates.jsonl", seed=seed), fields

    def models(self) -> None:
        """Make all models, as far as they are not made yet."""
        self._begun.models(["before"])
        for way, make in (
            ("before", self._warm),
            *((way, partial(self._learn, way)) for way in WAYS),
        ):
            about = {"kind": "model", "way": way}
            self._rows.once(about, partial(make_anew, self.folder / way, make))

    def scores(self, documents: int) -> None:
        """Read with all models, as far as they were not asked."""
        for within in (ASKED_ON, ASKED_ON // 5):
            for way in WAYS:
                about = {"kind": "score", "way": way, "within": within, "documents": documents}
                self._rows.once(about, partial(self._read, way, within, documents))

    def _warm(self, folder: Path) -> None:
        """From where `learn.py` begins."""
        model = AutoModelForCausalLM.from_pretrained(
            self._begun.folder / "before" / "model", dtype="float32"
        )
        torch.manual_seed(self.seed)
        shown = partial(next, lessons(random.Random(self.seed)))
        train(model, shown, steps=self._steps, batch=BATCH, rate=0.01, draw_words=True)
        save(model, folder / "model")

    def _learn(self, way: str, folder: Path) -> None:
        changed: Row = BUDGETS | {
            "reading": WAYS[way][0],
            "iterations": 80,
            "decay_steps": 320,
            "refills": 0,
        }
        warm = self.folder / "before" / "model"
        chosen = settings(
            warm, folder, self.seed, told=TOLD, **changed | WAYS[way][1] | self._fields
        )
        asyncio.run(Training(chosen, questions=partial(question, seed=self.seed)).run(tell))

    def _read(self, way: str, within: int, documents: int) -> Row:
        chat = ChatTransformers(
            model=str(self.folder / way / "model"), dtype="float32", logprobs=True, max_batch=128
        )
        config = ReadingConfig(chunk_tokens=SECTION, question_tokens=4, **BUDGETS, **WAYS[way][0])
        runner = RolloutRunner(
            chat, make_tokenizer(), config=config, prompts=TOLD, reward=exact, concurrency=128
        )
        about = {"words": HELD_OUT, "evidence_within": within}
        samples = [asked(index, ASKED_ON, SEED + self.seed, **about) for index in range(documents)]
        found = asyncio.run(runner.collect(samples, times=1)).rollouts
        chat.close()
        return {
            "right": [one.reward for one in found],
            "calls": [len(one.conversations) for one in found],
            "written": [sum(len(c.completion_ids) for c in one.conversations) for one in found],
        }


def report(rows: Sequence[Row], out: Path, folder: Path) -> str:
    """Draw `gates.png`; return the table in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    table = [["evidence", "reader", "right", "calls", "tokens written"]]
    means: dict[tuple[int, str, str], float] = {}
    for within in sorted({row["within"] for row in rows if row["kind"] == "score"}, reverse=True):
        where = "anywhere" if within == ASKED_ON else "in the first fifth"
        for way in WAYS:
            about = {"kind": "score", "way": way, "within": within}
            known = [row for row in rows if about.items() <= row.items()]
            if not known:
                continue
            right = mean_score([one for row in known for one in row["right"]])
            cells = [f"{right.value:.3f} ({right.low:.3f} to {right.high:.3f})"]
            for name in ("calls", "written"):
                cost = mean_cost([one for row in known for one in row[name]])
                means[within, way, name] = cost.value
                share = cost.value / means[within, "plain", name]
                cells.append(f"{cost.value:.1f} ({cost.low:.1f} to {cost.high:.1f}), {share:.0%}")
            table.append([where, way, *cells])
    _draw(rows, out, folder / "gates.png")
    return in_markdown(table)


def _draw(rows: Sequence[Row], out: Path, path: Path) -> None:
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    shown = {
        "reward of the answer": lambda line: line["answer_reward"],
        "calls": lambda line: line["calls"],
        "tokens written": lambda line: line["calls"] * line["completion_tokens"],
    }
    for axes, (title, value) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        for number, way in enumerate(WAYS):
            runs = [
                Journal(out / f"gates{row['seed']}" / way).metrics()
                for row in rows
                if row["kind"] == "model" and row["way"] == way
            ]
            curves = [[value(line) for line in run if "calls" in line] for run in runs]
            for curve in curves:
                axes.plot(range(1, len(curve) + 1), curve, color=f"C{number}", alpha=0.3)
            if curves:
                mean = [fmean(values) for values in zip(*curves, strict=False)]
                axes.plot(range(1, len(mean) + 1), mean, color=f"C{number}", label=way)
        axes.set(title=title, xlabel="iteration")
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--draw", type=Path, help="folder of the plot; that of --out by default")
    parser.add_argument("--report", action="store_true", help="measure nothing, and only report")
    asked_for = parser.parse_args(arguments)
    prepare(threads=1)
    asked_for.out.mkdir(parents=True, exist_ok=True)
    for seed in () if asked_for.report else asked_for.seeds:
        run = GateRun(seed, asked_for.out)
        run.models()
        run.scores(200)
    rows = read_rows(asked_for.out / "gates.jsonl")
    print(report(rows, asked_for.out, asked_for.draw or asked_for.out))


if __name__ == "__main__":
    main()
