"""One step of the trainer, alone or in several processes: MODEL OUT [FIELDS LAST]."""

import json
import sys
import weakref
from pathlib import Path

import torch
from rl.rollouts import some_rollouts
from transformers import AutoModelForCausalLM, AutoTokenizer

from memagent_graph.rl.grpo import GRPOSettings
from memagent_graph.rl.trainer import MultiConversationGRPOTrainer


def plain(weights, lr, weight_decay):
    """An optimizer whose step is the gradient itself: AdamW's is its sign at first."""
    assert not weight_decay
    return torch.optim.SGD(weights, lr=lr)


def main(model, out, fields="{}", last="g4"):
    torch.optim.AdamW = plain
    tokenizer = AutoTokenizer.from_pretrained(model)
    given = {"learning_rate": 0.5, "warmup_steps": 0, "kl_weight": 0.1, "token_budget": 128}
    settings = GRPOSettings(**given | {"updates": 1} | json.loads(fields))
    policy = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    trainer = MultiConversationGRPOTrainer(policy, tokenizer, settings)
    rank, count = trainer.accelerator.process_index, trainer.accelerator.num_processes
    # Unequal shares: the first process has more batches than the second.
    groups = ("g1", "g2", "g3", last)
    mine = groups if count == 1 else (groups[:3], groups[3:])[rank]
    rollouts = some_rollouts(tokenizer, seed=1, groups=5)

    metrics = trainer.step([one for one in rollouts if one.group in mine])

    trainer.save_model(out, tokenizer)
    found = {"processes": count, "grad_norm": metrics["grad_norm"]}
    wrapped, leave = weakref.ref(trainer.model), torch.distributed.destroy_process_group

    def leaving(group):
        found["wrapper_left"] = wrapped() is not None
        leave(group)

    torch.distributed.destroy_process_group = leaving
    trainer.close()
    if rank == 0:
        Path(out, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
