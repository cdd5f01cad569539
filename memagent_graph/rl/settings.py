"""What a training run is made of: one record, from a file, a program or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memagent_graph.errors import ConfigurationError


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: object) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ConfigurationError(found) from error

    @classmethod
    def from_file(cls, path: str | Path, **fields: object) -> Self:
        """Load settings from a YAML or JSON file; `fields` override what it says.

        Raises:
            ConfigurationError: The file cannot be read, or a field makes no sense.
        """
        try:
            found = yaml.safe_load(Path(path).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            message = f"No settings in {path}: {error}"
            raise ConfigurationError(message) from error
        if not isinstance(found, dict):
            message = f"No settings in {path}: it holds no fields with values."
            raise ConfigurationError(message)
        return cls(**{**found, **fields})


class GRPOSettings(_Settings):
    """How `MultiConversationGRPOTrainer` trains. The defaults are the paper's where it has any.

    Attributes:
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: optimizer steps over which the learning rate rises from 0.
        decay_steps: optimizer steps over which the learning rate then falls to a tenth; 0 keeps
            it as it is.
        weight_decay: of AdamW.
        max_grad_norm: length to which the gradient is cut.
        clip_low: how far below 1 a token's ratio may lower the loss.
        clip_high: how far above 1.
        dual_clip: how many times its advantage, if that is negative, a token's gain may come to.
        kl_weight: of the divergence from the model as it was at the beginning; 0 keeps no copy
            of it.
        importance_cap: largest weight of a token that an older policy sampled.
        scale_advantages: divide by the standard deviation of the group, as GRPO does and
            Dr. GRPO (arXiv 2503.20783) does not.
        step_weight: share of a conversation's own advantage, where it has a reward of its own, in
            its advantage; the rest is that of the whole rollout.
        mask_overlong: learn nothing from completions that were cut off by their budget, as DAPO
            does (arXiv 2503.14476, section 3.4).
        updates: optimizer steps that the rows of one step are split over.
        token_budget: tokens of one forward pass; the longest conversation must fit.
        gradient_checkpointing: compute activations twice, to keep less of them.
        mixed_precision: "bf16" computes in it and keeps the weights in float32.
        lora_rank: train adapters of this rank on all linear layers, not the weights themselves.
        report_to: trackers of `accelerate` that get the metrics ("tensorboard", "wandb", ...).
        seed: of everything random.
    """

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
    step_weight: float = Field(default=0.1, ge=0, le=1)
    mask_overlong: bool = False
    updates: int = Field(default=16, ge=1)
    token_budget: int = Field(default=16_384, ge=2)
    gradient_checkpointing: bool = False
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    lora_rank: int | None = Field(default=None, ge=1)
    report_to: tuple[str, ...] = ()
    seed: int = 0


class TrainingSettings(GRPOSettings):
    """A whole run of `memagent train`.

    Attributes:
        model: folder or hub id of the model to train, with its tokenizer.
        out: a folder for checkpoints, metrics, curves and the trained model.
        tasks: what to ask about: names as `memagent eval` has them, or `qa:FILE`.
        essays: text to hide evidence in, a file or a folder, for the tasks that need it.
        length: tokens of the documents.
        reward: name of a reward, or several with their weights.
        shaping: rewards of the whole rollout to be added, with their weights: "exit", "boxed",
            "calls", "written", "information", and "update", which is one of each step
            (`rl.rescoring`).
        skip_guessable: leave out questions that the model answers rightly without the document.
        iterations: how often to read and then train.
        questions: of an iteration.
        group_size: readings of each question.
        refills: how often to ask for more questions when groups without spread were dropped.
        evaluate_every: iterations between two evaluations on held-out questions; 0 for none.
        held_out: questions of an evaluation, which are never trained on; of a file with few
            questions a fifth of them.
        save_every: iterations between two checkpoints.
        engine: what samples: "hf" (transformers, in this process), "vllm" (in this process), or
            the URL of a vLLM server that serves `model` and shares this machine's files.
        engine_options: arguments of the engine (`max_model_len`, ...).
        chunk_tokens: as in `ReadingConfig`, as are the next two.
        memory_tokens: of the memory.
        answer_tokens: of the answer.
        reading: more fields of `ReadingConfig`, by name (`{update_gate: true}`).
        prompts: a file with the prompts.
        concurrency: readings at once.
        deterministic: sample one call at a time, so that not even rounding depends on timing.
        traces: recorded rollouts to train on; nothing is then generated.
        epochs: how often to go through them.
    """

    model: str
    out: Path
    tasks: tuple[str, ...] = ("niah_single_1",)
    essays: Path | None = None
    length: int = Field(default=28_000, ge=1)
    reward: str | dict[str, float] = "exact"
    shaping: dict[str, float] = Field(default_factory=dict)
    skip_guessable: bool = False
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
