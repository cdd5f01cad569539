"""The policy as a model of `transformers`: its log-probabilities, its adapters, its weights."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from memagent_graph.rl.packing import Batch


def score(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each trained token, and the sum of the entropies there.

    Args:
        model: a causal language model, as prepared for training.
        batch: on the model's device.

    Returns:
        `[tokens]` with a gradient, and a number without, both in float32.
    """
    # Only the columns that someone trains on become logits: a prompt is long, a vocabulary wide.
    output = model(input_ids=batch.ids, logits_to_keep=batch.columns, use_cache=False)
    logits = output.logits[batch.trained].float()
    targets = batch.targets[batch.trained]
    normalizers = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normalizers
    with torch.no_grad():
        chances = torch.exp(logits - normalizers[:, None])
        entropy = (normalizers - (chances * logits).sum(-1)).sum()
    return logprobs, entropy


@torch.no_grad()
def score_only(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The log-probabilities `[tokens]` of `score`, without a gradient."""
    return score(model, batch)[0]


def with_adapters(model: PreTrainedModel, rank: int) -> PeftModel:
    """The model with its weights frozen, and LoRA adapters on all linear layers to train."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def checkpoint_activations(model: PreTrainedModel | PeftModel) -> None:
    """Compute activations a second time in the backward pass, to keep less of them."""
    # transformers 5 renamed it and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


def merged(model: PeftModel) -> PreTrainedModel:
    """A copy of a model with adapters, without them but with what they change."""
    found: PreTrainedModel = deepcopy(model).merge_and_unload()
    return found
