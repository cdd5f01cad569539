"""Settings of a training run, from a file, a program or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class GRPOSettings(BaseModel):
    """Settings of `MultiConversationGRPOTrainer`, by default the paper's, as far as it states them.

    Attributes:
        learning_rate: learning rate of AdamW after the warm-up.
        warmup_steps: optimizer steps over which the learning rate rises from 0.
        decay_steps: optimizer steps over which the learning rate then falls to a tenth; 0 keeps it
            constant.
        weight_decay: weight decay of AdamW.
        max_grad_norm: norm to which the gradient is clipped.
        clip_low: distance below 1 to which a token's ratio is clipped.
        clip_high: distance above 1 to which it is clipped.
        dual_clip: bound of a token's gain, in multiples of a negative advantage.
        kl_weight: weight of the divergence from the initial model; 0 keeps no copy of that model.
        importance_cap: largest weight of a token that an older policy sampled.
        scale_advantages: divide by the standard deviation of the group, as GRPO does and
            Dr. GRPO (arXiv 2503.20783) does not.
        mask_overlong: ignore completions that were cut off by their budget, as DAPO does (arXiv
            2503.14476, section 3.4).
        updates: optimizer steps that the rows of one iteration are split over.
        token_budget: tokens of one forward pass; the longest conversation must fit.
        gradient_checkpointing: compute activations twice to save memory.
        mixed_precision: "bf16" computes in bfloat16 and keeps the weights in float32.
        lora_rank: train adapters of this rank on all linear layers instead of the weights.
        seed: seed of everything random.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=20, ge=0)
    decay_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float = Field(default=3.0, gt=1)
    kl_weight: float = Field(default=1e-3, ge=0)
    importance_cap: float = Field(default=2.0, ge=1)
    scale_advantages: bool = False
    mask_overlong: bool = False
    updates: int = Field(default=16, ge=1)
    token_budget: int = Field(default=16_384, ge=2)
    gradient_checkpointing: bool = False
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    lora_rank: int | None = Field(default=None, ge=1)
    seed: int = 0


class TrainingSettings(GRPOSettings):
    """Settings of a run of `memagent train`.

    Attributes:
        model: folder or hub id of the model to train, with its tokenizer.
        out: folder for checkpoints, metrics, curves and the trained model.
        tasks: tasks to train on: `qa:FILE`, or `masked:FOLDER`, which makes questions from
            documents without labels.
        essays: file or folder of texts that fill documents for which a file is too short.
        length: length of the documents in tokens.
        reward: name of a reward: "exact" or "substring".
        iterations: number of times to read and then train.
        questions: questions in an iteration.
        group_size: readings of each question.
        refills: most times to ask for more questions in place of groups with equal rewards.
        evaluate_every: iterations between two evaluations on held-out questions; 0 for none.
        held_out: questions for evaluation, which are never trained on; a fifth of a file with few
            questions.
        save_every: iterations between two checkpoints.
        engine: engine that samples: "hf" (transformers in this process), "vllm" (in this process),
            or the URL of a vLLM server that serves `model` and shares this machine's files.
        engine_options: arguments of the engine (`max_model_len`, ...).
        chunk_tokens: longest chunk.
        memory_tokens: longest memory.
        answer_tokens: longest answer.
        reading: more fields of `ReadingConfig`, by name (`{update_gate: true}`).
        prompts: file with the prompts.
        concurrency: readings at once.
        deterministic: sample one call at a time, so that not even rounding depends on timing.
        traces: recorded rollouts to train on; nothing is then generated.
        epochs: number of passes over these.
    """

    model: str
    out: Path
    tasks: tuple[str, ...] = ()
    essays: Path | None = None
    length: int = Field(default=28_000, ge=1)
    reward: str = "exact"
    iterations: int = Field(default=100, ge=1)
    questions: int = Field(default=128, ge=1)
    group_size: int = Field(default=16, ge=2)
    refills: int = Field(default=0, ge=0)
    evaluate_every: int = Field(default=10, ge=0)
    held_out: int = Field(default=64, ge=1)
    save_every: int = Field(default=10, ge=1)
    engine: str = "hf"
    engine_options: dict[str, Any] = Field(default_factory=dict)
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    reading: dict[str, Any] = Field(default_factory=dict)
    prompts: Path | None = None
    concurrency: int = Field(default=256, ge=1)
    deterministic: bool = False
    traces: tuple[str, ...] = ()
    epochs: int = Field(default=1, ge=1)
