"""Does it learn, and does what it learned hold for documents 110 times as long? `make learn`.

For each seed: a small model is made and warmed up (`tiny_reader.py`), then trained by the online
loop through the reading graph on documents of 4 sections, and measured on up to 1,024. Beside it:
the warm-up model; the trained model with the whole document in its window; and, for the first
seed, supervised training for as long as reinforcement learning took, and training on recorded
readings of the warm-up model alone. A table and two plots go to `--draw`. What `--out` has from an
earlier run is not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from learn_report import write_report
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

from memagent_graph import ReadingConfig, create_memagent, read_many
from memagent_graph.models.transformers import ChatTransformers
from memagent_graph.rl.records import End
from memagent_graph.rl.rewards import exact
from memagent_graph.rl.rollouts import RolloutRunner
from memagent_graph.rl.settings import TrainingSettings
from memagent_graph.rl.sinks import JSONLinesSink
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memagent_graph.evaluation.samples import Sample

HOPS = (1, 2)
TRAINED_ON = 4
LENGTHS = (4, 16, 64, 256, 440, 1024)
LONG = 64
BUDGETS = {"memory_tokens": 5, "answer_tokens": 5}
READING = ReadingConfig(chunk_tokens=SECTION, question_tokens=4, **BUDGETS)
HELD_OUT_SEED = 1_000_000


def settings(folder: Path, model: Path, seed: int, **fields: Any) -> TrainingSettings:
    """Of the online run; `fields` change it."""
    prompts = folder / "prompts.json"
    prompts.write_text(PROMPTS.model_dump_json(), "utf-8")
    given = {
        "model": str(model),
        "out": folder / "online",
        "questions": 32,
        "group_size": 8,
        "updates": 2,
        "learning_rate": 2e-4,
        "warmup_steps": 10,
        "clip_high": 0.28,
        "kl_weight": 0.0,
        "token_budget": 8192,
        "evaluate_every": 25,
        "save_every": 50,
        "engine_options": {"max_batch": 256},
        "chunk_tokens": SECTION,
        "prompts": prompts,
        "seed": seed,
    }
    return TrainingSettings(**given | BUDGETS | fields)


def score(
    model: Path,
    hops: int,
    chunks: int,
    count: int,
    *,
    whole: bool = False,
    temperature: float = 0.0,
) -> float:
    """Share of unseen documents whose question is answered; `whole` reads them in one window."""
    chat = ChatTransformers(
        model=str(model), dtype="float32", max_batch=128, temperature=temperature
    )
    config = READING.model_copy(update={"chunk_tokens": chunks * SECTION}) if whole else READING
    agent = create_memagent(chat, config=config, prompts=PROMPTS)
    samples = [
        sample(index, hops=hops, chunks=chunks, seed=HELD_OUT_SEED) for index in range(count)
    ]
    tasks = [
        {"id": one.id, "question": one.question, "document": one.opened()[0]} for one in samples
    ]
    right = {one.id: one.answers for one in samples}
    worth = sum(
        exact(result.output["answer"], right[result.id])
        for result in read_many(agent, tasks, concurrency=128)
        if result.output
    )
    chat.close()  # the folder will hold other weights when training has gone on
    return worth / count


def learn(seed: int, out: Path, *, stops: list[int], count: int, lengths: list[int]) -> dict:
    """All of it for one seed; what was measured."""
    folder = out / f"seed{seed}"
    torch.manual_seed(seed)
    found: dict = {"seed": seed, "stops": []}

    shutil.rmtree(folder, ignore_errors=True)  # an unfinished run would be gone on with
    folder.mkdir(parents=True)
    started = perf_counter()
    model = make_model()
    warm_up(model, seed=seed)
    warm = save(model, folder / "warm")
    found["warm_up_seconds"] = perf_counter() - started
    found["sampled_before"] = {
        str(hops): score(warm, hops, TRAINED_ON, 256, temperature=1.0) for hops in HOPS
    }
    print(
        f"seed {seed}: warmed up in {found['warm_up_seconds']:.0f} s,",
        found["sampled_before"],
        flush=True,
    )

    seconds = 0.0
    for iterations in stops:  # a later stop goes on from an earlier one's checkpoint
        started = perf_counter()
        chosen = settings(folder, warm, seed, iterations=iterations, decay_steps=2 * max(stops))
        training = Training(chosen, questions=lambda index: question(index, seed))
        asyncio.run(training.run(tell))
        seconds += perf_counter() - started
        trained = chosen.out / "model"
        found["stops"].append(
            {
                "iterations": iterations,
                "seconds": seconds,
                "sampled": {
                    str(hops): score(trained, hops, TRAINED_ON, 256, temperature=1.0)
                    for hops in HOPS
                },
            }
        )
        print(f"seed {seed}:", found["stops"][-1], flush=True)
    found["curve"] = training.journal.metrics()

    few = [one for one in lengths if one <= LONG]  # the others are at nothing long before
    found["scores"] = {
        "trained": scores(trained, lengths, count),
        "warm-up": scores(warm, few, count),
        "trained, one window": scores(trained, few, count, whole=True),
    }
    print(f"seed {seed}:", found["scores"], flush=True)
    return found


def scores(
    model: Path, lengths: list[int], count: int, *, whole: bool = False
) -> dict[str, dict[str, float]]:
    """Of each task at each length, over fewer documents where these are long."""
    gc.freeze()  # looking through what is loaded for garbage takes a third of the time
    return {
        str(hops): {
            str(chunks): score(model, hops, chunks, min(count, 28_160 // chunks), whole=whole)
            for chunks in lengths
        }
        for hops in HOPS
    }


def question(index: int, seed: int) -> Sample:
    """What is trained on: mostly two hops, and more misleading than is measured."""
    return sample(
        index,
        hops=HOPS[min(index % 4, 1)],
        chunks=TRAINED_ON,
        seed=seed,
        misleading=(1, 2, 3, 4),
    )


def tell(line: Mapping[str, Any]) -> None:
    """One line for every evaluation."""
    if "held_out_reward" in line:
        print(
            f"  iteration {line['iteration']:>4}  held-out reward {line['held_out_reward']:.3f}",
            flush=True,
        )


def supervised(seed: int, out: Path, *, seconds: float) -> Path:
    """The warm-up model after supervised training for as long as the online run took."""
    folder = out / f"seed{seed}"
    model = AutoModelForCausalLM.from_pretrained(folder / "warm", dtype="float32")
    started = perf_counter()
    more_supervised(model, seed=seed + 1, steps=20)
    each = (perf_counter() - started) / 20
    more_supervised(model, seed=seed + 2, steps=int(seconds / each) - 20)
    return save(model, folder / "supervised")


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
        learning_rate=2e-4,
        decay_steps=groups // 16,
    )
    asyncio.run(Training(chosen).run(lambda _line: None))
    return {
        name: [score(path, hops, TRAINED_ON, 256, temperature=1.0) for hops in HOPS]
        for name, path in (("before", warm), ("after", chosen.out / "model"))
    }


def once(path: Path, measure: Callable[[], Any]) -> Any:
    """What `path` says of an earlier run, or else what is measured now."""
    if not path.exists():
        found = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return json.loads(path.read_text("utf-8"))


def main() -> None:
    """Parse arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--stops", type=int, nargs="+", default=[50, 120], help="iterations at which to measure"
    )
    parser.add_argument("--documents", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=[*LENGTHS])
    parser.add_argument("--out", type=Path, default=Path("learned"))
    parser.add_argument("--draw", type=Path, help="folder of the plots; that of --out by default")
    asked = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))  # more are slower with so small a model
    results = [
        once(
            asked.out / f"seed{seed}.json",
            partial(
                learn,
                seed,
                asked.out,
                stops=asked.stops,
                count=asked.documents,
                lengths=asked.lengths,
            ),
        )
        for seed in asked.seeds
    ]
    first = results[0]
    first["scores"]["supervised alone"] = once(
        asked.out / "supervised.json",
        lambda: scores(
            supervised(first["seed"], asked.out, seconds=first["stops"][-1]["seconds"]),
            [one for one in asked.lengths if one <= LONG],
            asked.documents,
        ),
    )
    offline = once(
        asked.out / "offline.json", lambda: replay(first["seed"], asked.out, groups=1024)
    )
    print("offline replay, sampled reward of both tasks:", offline)
    found = {"online": results, "offline": offline}
    (asked.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(write_report(found, asked.draw or asked.out))


if __name__ == "__main__":
    main()
