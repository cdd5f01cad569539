"""The policy as a model of `transformers`: log-probabilities, adapters and weights."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from memagent_graph.rl.packing import Batch


def score(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each trained token, and the sum of the entropies there.

    Args:
        model: a causal language model, prepared for training.
        batch: the batch, on the model's device.

    Returns:
        Log-probabilities `[tokens]` with a gradient, and the sum of the entropies in nats, a
        scalar without one; both in float32.
    """
    # Logits are computed only for trained columns: prompts are long, and vocabularies large.
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
    """Return the log-probabilities of `score`, `[tokens]`, without a gradient."""
    return score(model, batch)[0]


def with_adapters(model: PreTrainedModel, rank: int) -> PeftModel:
    """Freeze the weights of a model, and add trainable LoRA adapters to all linear layers."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def checkpoint_activations(model: PreTrainedModel | PeftModel) -> None:
    """Turn on gradient checkpointing, which computes activations again to save memory."""
    # transformers 5 renamed it, and warns about the old name.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


def merged(model: PeftModel) -> PreTrainedModel:
    """Return a copy of a model with its adapters merged into the weights."""
    found: PreTrainedModel = deepcopy(model).merge_and_unload()
    return found
