"""Trained tokens a second against a bare forward and backward pass of the same rows.

The bare pass is of rows of exactly the same length together, so without padding, and of the mean
log-probability of their completions: no ratio, no clipping, no entropy, no metrics. The
trainer's step is all that it does: packing, loss, gradient, clipping of its norm, AdamW.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tiny_model import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from memagent_graph.rl.settings import GRPOSettings
from memagent_graph.rl.traces import Conversation, Rollout, fingerprint
from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

ROUNDS = 3
BUDGET = 4096


def rollouts(vocabulary: str) -> list[Rollout]:
    """4 groups of 8 rollouts: three updates with long prompts and an answer with a short one."""
    rng = random.Random(0)
    found = []
    for index in range(32):
        parts = []
        for step in range(4):
            prompt = rng.choice(range(40, 80, 8) if step == 3 else range(240, 400, 16))
            completion = rng.choice(range(8, 72, 16))
            parts.append(
                Conversation(
                    sample=f"q{index // 8}",
                    group=f"q{index // 8}",
                    rollout=f"r{index}",
                    step=step,
                    final=step == 3,
                    prompt_ids=tuple(rng.choices(range(4, 2000), k=prompt)),
                    completion_ids=tuple(rng.choices(range(4, 2000), k=completion)),
                    logprobs=(-7.0,) * completion,
                    policy=0,
                    sampling={"temperature": 1.0},
                    tokenizer=vocabulary,
                )
            )
        found.append(
            Rollout(f"r{index}", f"q{index // 8}", f"q{index // 8}", tuple(parts), "", index % 2, 0)
        )
    return found


def bare(model: torch.nn.Module, rows: list[Conversation]) -> None:
    """Forward and backward of all rows, those of one length and one prompt length together."""
    alike: dict[tuple[int, int], list[Conversation]] = defaultdict(list)
    for row in rows:
        alike[len(row.prompt_ids), len(row.completion_ids)].append(row)
    model.zero_grad()
    for (prompt, completion), group in alike.items():
        most = BUDGET // (prompt + completion)
        for start in range(0, len(group), most):
            part = group[start : start + most]
            ids = torch.tensor([[*row.prompt_ids, *row.completion_ids] for row in part])
            logits = model(input_ids=ids, logits_to_keep=completion + 1, use_cache=False).logits
            logprobs = torch.log_softmax(logits[:, :-1].float(), -1)
            logprobs.gather(-1, ids[:, prompt:, None]).mean().backward()


def main() -> None:
    """Measure both in turns and print the medians."""
    with TemporaryDirectory() as folder:
        tiny_model(Path(folder), width=256, layers=4, vocabulary=2000, spread=0.02)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    given = rollouts(fingerprint(tokenizer))
    rows = [one for rollout in given for one in rollout.conversations]
    tokens = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    settings = GRPOSettings(kl_weight=0.0, token_budget=BUDGET, updates=1)
    trainer = MultiConversationGRPOTrainer(deepcopy(model), tokenizer, settings)
    seconds: dict[str, list[float]] = {"bare": [], "trainer": []}
    padding = 0.0
    for _ in range(ROUNDS):
        started = perf_counter()
        bare(model, rows)
        seconds["bare"].append(perf_counter() - started)
        started = perf_counter()
        padding = trainer.step(given)["padding"]
        seconds["trainer"].append(perf_counter() - started)
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    print(f"{parameters:.1f} M parameters, {len(rows)} conversations, {tokens:,} tokens")
    for name, all_seconds in seconds.items():
        print(f"{name:8} {tokens / median(all_seconds):9,.0f} tokens/s")
    ratio = median(seconds["bare"]) / median(seconds["trainer"])
    print(f"ratio    {ratio:9.2f}  (padding {padding:.1%})")


if __name__ == "__main__":
    main()
