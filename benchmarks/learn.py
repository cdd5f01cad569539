"""Does it learn, and does what it learned hold for documents 110 times as long? `make learn`.

For each seed: a small model is made and warmed up (`tiny_reader.py`), then trained by the online
loop through the reading graph on documents of 4 sections, and measured on up to 1,024. To the
first stop each seed has the machine for itself, and is timed; from there they run side by side, as
reading is mostly Python. Beside it: the warm-up model; the trained model with the whole document in
its window; and, for the first seed, supervised training for as long as the loop took to its first
stop, and training on recorded readings of the warm-up model alone. A table and two plots go to
`--draw`. What `--out` has from an earlier run is not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from learn_report import write_report
from learn_scores import BUDGETS, HOPS, LENGTHS, LONG, READING, TRAINED_ON, sampled, scores
from tiny_reader import (
    PROMPTS,
    SECTION,
    make_model,
    make_tokenizer,
    more_supervised,
    sample,
    save,
    warm_up,
)
from transformers import AutoModelForCausalLM

from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.journal import Journal
from memagent_graph.rl.records import End
from memagent_graph.rl.rewards import exact
from memagent_graph.rl.rollouts import RolloutRunner
from memagent_graph.rl.settings import TrainingSettings
from memagent_graph.rl.sinks import JSONLinesSink
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memagent_graph.evaluation.samples import Sample

HARD, EASY = (1, 6, 8, 8), (1,)
"""How many pairs of a section mislead: in the first documents to train on, and in the others, which
are such as are measured."""
HARD_UNTIL = 200


def settings(folder: Path, model: Path, seed: int, **fields: Any) -> TrainingSettings:
    """Of the online run; `fields` change it."""
    prompts = folder / "prompts.json"
    prompts.write_text(PROMPTS.model_dump_json(), "utf-8")
    given = {
        "model": str(model),
        "out": folder / "online",
        "questions": 16,
        "group_size": 8,
        "updates": 2,
        "refills": 2,
        "scale_advantages": True,
        "lora_rank": 16,
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "decay_steps": 400,
        "clip_high": 0.28,
        "kl_weight": 0.0,
        "token_budget": 8192,
        "evaluate_every": 10,
        "save_every": 50,
        "engine_options": {"max_batch": 256},
        "chunk_tokens": SECTION,
        "prompts": prompts,
        "seed": seed,
    }
    return TrainingSettings(**given | BUDGETS | fields)


def warmed_up(seed: int, out: Path) -> dict[str, Any]:
    """Make a model and warm it up; what was measured."""
    folder = out / f"seed{seed}"
    torch.manual_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = perf_counter()
    model = make_model()
    warm_up(model, seed=seed)
    path = save(model, folder / "warm")
    seconds = perf_counter() - started
    found = {"seed": seed, "warm_up_seconds": seconds, "sampled_before": sampled(path)}
    print(found, flush=True)
    return found


def begin(warmed: dict[str, Any], out: Path, *, stop: int) -> dict[str, Any]:
    """Train what is `warmed` up to the first stop."""
    seed = warmed["seed"]
    # An unfinished run would be gone on with, and its time be too short.
    shutil.rmtree(out / f"seed{seed}" / "online", ignore_errors=True)
    return warmed | {"stops": [train_to(stop, seed, out)]}


def go_on(
    begun: dict[str, Any], out: Path, *, stops: list[int], lengths: list[int], count: int
) -> dict[str, Any]:
    """Train what has `begun` to the other stops, and measure it at all lengths."""
    seed, reached = begun["seed"], [*begun["stops"]]
    for iterations in stops[1:]:
        found = train_to(iterations, seed, out)
        reached.append(found | {"seconds": found["seconds"] + reached[-1]["seconds"]})
    online, warm = out / f"seed{seed}" / "online", out / f"seed{seed}" / "warm"
    few = [one for one in lengths if one <= LONG]  # the others are at nothing long before
    by_length = {
        "trained": scores(online / "model", lengths, count),
        "warm-up": scores(warm, few, count),
        "trained, one window": scores(online / "model", few, count, whole=True),
    }
    print(f"seed {seed}:", by_length, flush=True)
    return begun | {
        "stops": reached,
        "curve": Journal(online).metrics(),
        "scores": by_length,
    }


def train_to(iterations: int, seed: int, out: Path) -> dict[str, Any]:
    """Go on with the online run, from its checkpoint if there is one; what it came to."""
    folder = out / f"seed{seed}"
    chosen = partial(settings, folder, folder / "warm", seed)
    stages = [(chosen(iterations=min(iterations, HARD_UNTIL)), HARD)]
    if iterations > HARD_UNTIL:
        stages.append((chosen(iterations=iterations, learning_rate=1e-3, decay_steps=800), EASY))
    started = perf_counter()
    for stage, misleading in stages:
        asked = partial(question, seed=seed, misleading=misleading)
        asyncio.run(Training(stage, questions=asked).run(tell))
    found = {
        "iterations": iterations,
        "seconds": perf_counter() - started,
        "sampled": sampled(folder / "online" / "model"),
    }
    print(f"seed {seed}:", found, flush=True)
    return found


def question(index: int, seed: int, misleading: tuple[int, ...] = HARD) -> Sample:
    """What is trained on: mostly two hops."""
    return sample(
        index,
        hops=HOPS[min(index % 4, 1)],
        chunks=TRAINED_ON,
        seed=seed,
        misleading=misleading,
    )


def tell(line: Mapping[str, Any]) -> None:
    """One line for every evaluation."""
    if "held_out_reward" in line:
        print(
            f"  iteration {line['iteration']:>4}  held-out reward {line['held_out_reward']:.3f}",
            flush=True,
        )


def supervised(
    seed: int, out: Path, *, seconds: float, lengths: list[int], count: int
) -> dict[str, Any]:
    """What the warm-up model comes to by so many seconds more of its supervised training."""
    folder = out / f"seed{seed}"
    model = AutoModelForCausalLM.from_pretrained(folder / "warm", dtype="float32")
    started = perf_counter()
    more_supervised(model, seed=seed + 1, steps=20)
    each = (perf_counter() - started) / 20
    more_supervised(model, seed=seed + 2, steps=int(seconds / each) - 20)
    path = save(model, folder / "supervised")
    found = {"sampled": sampled(path), "scores": scores(path, lengths, count)}
    print("supervised alone:", found, flush=True)
    return found


def replay(seed: int, out: Path, *, groups: int) -> dict:
    """Record readings of the warm-up model, train on them alone, and measure."""
    folder = out / f"seed{seed}"
    warm, traces = folder / "warm", folder / "traces.jsonl"
    traces.unlink(missing_ok=True)
    chat = ChatTransformers(
        model=str(warm), dtype="float32", max_batch=128, temperature=1.0, logprobs=True
    )
    runner = RolloutRunner(
        chat, make_tokenizer(), config=READING, prompts=PROMPTS, reward=exact, seed=seed
    )
    sink = JSONLinesSink(traces)
    for start in range(0, groups, 16):
        samples = [question(index, seed + 500_000) for index in range(start, start + 16)]
        for rollout in asyncio.run(runner.collect(samples, times=8)).rollouts:
            for conversation in rollout.conversations:
                sink.write(conversation)
            sink.write(
                End(rollout.rollout, len(rollout.conversations), rollout.answer, rollout.reward)
            )
    sink.close()
    chosen = settings(
        folder,
        warm,
        seed,
        out=folder / "offline",
        traces=(str(traces),),
        updates=1,
        lora_rank=None,
        learning_rate=2e-4,
        decay_steps=groups // 16,
    )
    asyncio.run(Training(chosen).run(lambda _line: None))
    return {"before": sampled(warm), "after": sampled(chosen.out / "model")}


def once(path: Path, measure: Callable[[], Any]) -> Any:
    """What `path` says of an earlier run, or else what is measured now."""
    if not path.exists():
        found = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return json.loads(path.read_text("utf-8"))


def prepare(threads: int) -> None:
    """Make a process ready to train and to read."""
    torch.set_num_threads(threads)
    # Looking for garbage in all that is imported, and often, takes a quarter of the time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def first(seed: int, out: Path, *, stop: int) -> dict[str, Any]:
    """One seed to its first stop, or what is missing of that."""
    warmed = once(out / f"seed{seed}-warm.json", partial(warmed_up, seed, out))
    return once(out / f"seed{seed}.json", partial(begin, warmed, out, stop=stop))


def finish(
    begun: dict[str, Any], *, out: Path, stops: list[int], lengths: list[int], count: int
) -> dict[str, Any]:
    """The rest of one seed, if it is missing."""
    rest = partial(go_on, begun, out, stops=stops, lengths=lengths, count=count)
    return once(out / f"seed{begun['seed']}-finished.json", rest)


def main() -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--stops",
        type=int,
        nargs="+",
        default=[48, 200, 300],
        help="iterations at which to measure",
    )
    parser.add_argument("--documents", type=int, default=160)
    parser.add_argument("--lengths", type=int, nargs="+", default=[*LENGTHS])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--draw", type=Path, help="folder of the plots; that of --out by default")
    parser.add_argument(
        "--first",
        action="store_true",
        help="train the first seed to its first stop alone, and say where its plot is",
    )
    asked = parser.parse_args()
    threads = min(2, torch.get_num_threads())  # more are slower with so small a model
    prepare(threads)
    if asked.first:
        begun = first(asked.seeds[0], asked.out, stop=asked.stops[0])
        print(f"before {begun['sampled_before']}, after {begun['stops'][0]['sampled']}")
        print(f"curves: {asked.out / f'seed{asked.seeds[0]}' / 'online' / 'curves.png'}")
        return
    spawn = get_context("spawn")  # a fork would lack this process's threads
    # A process for each: threads that an earlier seed has left slow OpenMP's down.
    with ProcessPoolExecutor(
        1, spawn, initializer=prepare, initargs=(threads,), max_tasks_per_child=1
    ) as worker:
        begun = list(worker.map(partial(first, out=asked.out, stop=asked.stops[0]), asked.seeds))
    rest = partial(
        finish, out=asked.out, stops=asked.stops, lengths=asked.lengths, count=asked.documents
    )
    with ProcessPoolExecutor(len(begun), spawn, initializer=prepare, initargs=(1,)) as workers:
        results = list(workers.map(rest, begun))
    alone = once(
        asked.out / "supervised.json",
        partial(
            supervised,
            asked.seeds[0],
            asked.out,
            seconds=results[0]["stops"][0]["seconds"],
            lengths=[one for one in asked.lengths if one <= LONG],
            count=asked.documents,
        ),
    )
    results[0]["scores"]["supervised alone"] = alone["scores"]
    again = partial(replay, asked.seeds[0], asked.out, groups=1024)
    offline = once(asked.out / "offline.json", again)
    print("offline replay, sampled reward of both tasks:", offline)
    found = {"online": results, "supervised": alone, "offline": offline}
    (asked.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(write_report(found, asked.draw or asked.out))


if __name__ == "__main__":
    main()
