"""Does a reader learn what to keep, and does it hold for documents 110 times as long? `make learn`.

Each seed makes a small model, warms it up in the format alone (`tiny_reader.py`), and trains it
from there in three ways: by the online loop through the reading graph; by the same loop with the
advantage on the last conversation alone; and supervised, on the right notes after each section,
for as much of the processor's time as the loop took. Documents have 4 sections there. All four
models are then asked about documents up to 256 times as long, in words that none has ever seen.

Each figure is a row of `OUT/rows.jsonl`, written when it is known. A run that was stopped goes on
with what is missing; `--report` makes table and plots of the rows so far.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from learn_report import write_report
from learn_rows import Rows, make_anew, prepare, read_rows, tell
from learn_scores import BUDGETS, HOPS, TIMES, TRAINED_ON, held_out, score
from tiny_language import HELD_OUT, SECTION, TRAINING, sample
from tiny_reader import PROMPTS, make_model, save, train_on_labels, warm_up
from transformers import AutoModelForCausalLM

from memagent_graph.rl.settings import TrainingSettings
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from learn_rows import Row

    from memagent_graph import Prompts
    from memagent_graph.evaluation.samples import Sample
    from memagent_graph.rl.traces import Rollout

WAYS = ("before", "ours", "labels", "last")
FIRST = {"iterations": 120, "decay_steps": 480}
"""Settings of a first reader, which is to be there within ten minutes."""
ASKED_HELD_OUT = 64
"""Questions of the evaluations within a run."""


def question(index: int, seed: int) -> Sample:
    """What the loop asks: first what evaluations ask, then what it learns from."""
    words = HELD_OUT if index < ASKED_HELD_OUT else TRAINING
    hops = HOPS[index % 2]
    return sample(index, hops=hops, chunks=TRAINED_ON, seed=seed, words=words)


def last_alone(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Leave only the last conversation of each rollout to be trained on."""
    return [replace(one, conversations=one.conversations[-1:]) for one in rollouts]


def settings(
    model: Path, out: Path, seed: int, *, told: Prompts = PROMPTS, **fields: Any
) -> TrainingSettings:
    """Of the online runs; `fields` change them."""
    out.mkdir(parents=True, exist_ok=True)
    prompts = out / "prompts.json"
    prompts.write_text(told.model_dump_json(), "utf-8")
    given = {
        "model": str(model),
        "out": out,
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
        "prompts": prompts,
        "seed": seed,
    }
    return TrainingSettings(**given | BUDGETS | fields)


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
        self.seed, self.folder = seed, out / f"seed{seed}"
        self._rows = Rows(out / "rows.jsonl", seed=seed)
        self._steps, self._fields = steps or {}, fields

    def models(self, ways: Sequence[str] = WAYS) -> None:
        """Make all models, as far as they are not made yet."""
        makes = {
            "before": self._warm,
            "ours": self.learn,
            "labels": self._label,
            "last": self._learn_last,
        }
        for way in ways:
            make = partial(make_anew, self.folder / way, makes[way])
            self._rows.once({"kind": "model", "way": way}, make)

    def scores(self, times: Mapping[int, int], ways: Sequence[str] = WAYS) -> None:
        """Ask all models about so many documents of each length, as far as they were not asked."""
        for at, documents in times.items():
            for way in ways:
                for hops in HOPS:
                    about = {
                        "kind": "score",
                        "way": way,
                        "hops": hops,
                        "times": at,
                        "documents": documents,
                    }
                    samples = partial(held_out, hops, at, documents, seed=self.seed)
                    self._rows.once(about, partial(self._scored, way, samples))

    def shares(self, way: str, times: int) -> dict[str, float]:
        """Right answers of one model at one length, by task."""
        found = self._rows.about({"kind": "score", "way": way, "times": times})
        return {f"{row['hops']}-hop": round(fmean(row["right"]), 3) for row in found}

    def learn(self, folder: Path, *, last: bool = False, **changed: Any) -> None:
        """Train from the warm-up by the loop; `changed` are other settings."""
        warm = self.folder / "before" / "model"
        chosen = settings(warm, folder, self.seed, **self._fields | changed)
        asked = partial(question, seed=self.seed)
        training = Training(chosen, questions=asked)
        if last:
            step = training.trainer.step
            training.trainer.step = lambda rollouts: step(last_alone(rollouts))
        asyncio.run(training.run(tell))

    def _scored(self, way: str, samples: Callable[[], list[Sample]]) -> Row:
        return {"right": score(self.folder / way / "model", samples())}

    def _warm(self, folder: Path) -> None:
        torch.manual_seed(self.seed)
        model = make_model()
        warm_up(model, seed=self.seed, **self._steps)
        save(model, folder / "model")

    def _learn_last(self, folder: Path) -> None:
        self.learn(folder, last=True)

    def _label(self, folder: Path) -> None:
        """Supervised, for as much of the processor's time as the loop took."""
        [ours] = self._rows.about({"kind": "model", "way": "ours"})
        model = AutoModelForCausalLM.from_pretrained(
            self.folder / "before" / "model", dtype="float32"
        )
        samples = map(partial(question, seed=self.seed), count(ASKED_HELD_OUT))
        train_on_labels(model, samples, seconds=ours["processor"])
        save(model, folder / "model")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--draw", type=Path, help="folder of the plots; that of --out by default")
    parser.add_argument("--report", action="store_true", help="measure nothing, and only report")
    parser.add_argument(
        "--first", action="store_true", help="train one reader, and say where its metrics are"
    )
    asked = parser.parse_args(arguments)
    prepare(threads=1)  # with so small a model a second one costs more than it brings
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.first:
        run = Run(0, asked.out, **FIRST)
        run.models(WAYS[:2])
        run.scores({1: TIMES[1]}, WAYS[:2])
        shares = [run.shares(way, 1) for way in WAYS[:2]]
        print(f"right answers before {shares[0]}, after {shares[1]}")
        print(f"metrics: {run.folder / 'ours' / 'metrics.jsonl'}")
        return
    for seed in () if asked.report else asked.seeds:
        run = Run(seed, asked.out)
        run.models()
        run.scores(TIMES)
    print(write_report(read_rows(asked.out / "rows.jsonl"), asked.out, asked.draw or asked.out))


if __name__ == "__main__":
    main()
