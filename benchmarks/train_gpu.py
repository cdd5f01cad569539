"""Train a model of Qwen2.5-0.5B's shape for a few iterations on one GPU: `make train-gpu`.

Prints the seconds that each iteration reads, trains and hands the weights on. `--model` is a local
folder; where there is none yet, one of random weights is made there. As such a model answers
nothing rightly, its reward is how many different letters it answers with.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from memagent_graph.rl.settings import TrainingSettings
from memagent_graph.rl.training import Training

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECONDS = ("reading_seconds", "training_seconds", "handing_on_seconds")


def make_model(folder: Path) -> None:
    """Save a model of Qwen2.5-0.5B's shape, random weights, and a small tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from tiny_model import byte_pairs

    tokenizer = byte_pairs(2_000, 32_768)
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4_864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def different_letters(answer: str, _truths: Sequence[str]) -> float:
    return len(set(answer)) / 100


def tell(line: Mapping[str, float]) -> None:
    shown = "  ".join(f"{name.replace('_', ' ')} {line[name]:.2f}" for name in SECONDS)
    print(f"iteration {line['iteration']}: {shown}, {line['tokens']:.0f} tokens", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("gpu-model"))
    parser.add_argument("--out", type=Path, default=Path("gpu-trained"))
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--length", type=int, default=12_000, help="tokens of a document")
    parser.add_argument("--chunk-tokens", type=int, default=2_000)
    parser.add_argument("--memory-tokens", type=int, default=256)
    parser.add_argument("--questions", type=int, default=8)
    given = parser.parse_args(arguments)
    if not given.model.exists():
        make_model(given.model)
    gpu = torch.cuda.is_available()
    settings = TrainingSettings(
        **vars(given) | {"model": str(given.model)},
        answer_tokens=given.memory_tokens,
        group_size=8,
        updates=4,
        token_budget=8_192,
        evaluate_every=0,
        mixed_precision="bf16" if gpu else "no",
        gradient_checkpointing=gpu,
        engine_options={"max_batch": 64, "dtype": "bfloat16" if gpu else "float32"},
    )
    print(f"on {torch.cuda.get_device_name() if gpu else 'the CPU: no GPU is here'}")
    asyncio.run(Training(settings, reward=different_letters).run(tell))


if __name__ == "__main__":
    main()
