"""A training step of Agent Lightning and verl with the recipe, against `grpo_loss`; on a CPU."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

import numpy as np
import torch
from agentlightning.verl.agl_rollout_manager import CompletedRollout, Triplet
from agentlightning.verl.rollout_adapter import RolloutAdapter
from agentlightning.verl.rollout_level_advantage import compute_rollout_level_advantage
from agentlightning.verl.trainer import AgentLightningRayPPOTrainer
from rl.rollouts import rollout
from tiny_model import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner
from verl.model_merger.__main__ import main as merge
from verl.trainer.main_ppo import need_critic, need_reference_policy, validate_config
from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.ray_trainer import compute_response_mask
from verl.utils import tensordict_utils

from memagent_graph.cli.app import app
from memagent_graph.rl.advantages import Baseline, group_advantages, make_training_rows
from memagent_graph.rl.loss import grpo_loss
from memagent_graph.rl.settings import GRPOSettings
from memagent_graph.rl.traces import fingerprint
from memagent_graph.rl.trainer import collate, score

sys.path.insert(0, str(Path(__file__).parent))
from training_step import TrainingStep, running_gateway, small_recipe, verl_on_a_cpu

pytestmark = pytest.mark.verl
PAPER = GRPOSettings()
# 5 groups of 4 rollouts have 70 conversations, of which 16 updates of 4 take 64.
SMALL = {
    "data.train_batch_size": 5,
    "data.max_prompt_length": 64,
    "data.max_response_length": 16,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 128,
    # Far enough a step that ratios are clipped, and not so far that verl bounds the divergence.
    "actor_rollout_ref.actor.optim.lr": 2e-3,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 0,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a small policy, and of a reference that is near it."""
    folder = tmp_path_factory.mktemp("models")
    policy = tiny_model(folder / "policy", vocabulary=300, spread=0.1)
    reference = AutoModelForCausalLM.from_pretrained(policy, dtype="float32")
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(torch.randn_like(weight) * 0.01)
    reference.save_pretrained(folder / "reference")
    return policy, folder / "reference"


@pytest.fixture(scope="module")
def rollouts(folders):
    """Groups of ragged rollouts, the first of which has equal rewards."""
    torch.manual_seed(0)
    vocabulary = fingerprint(AutoTokenizer.from_pretrained(folders[0]))

    def drawn(least, most):
        length = int(torch.randint(least, most + 1, ()))
        return tuple(torch.randint(4, 300, (length,)).tolist())

    def conversation():
        reply = drawn(1, 16)
        return drawn(4, 64), reply, tuple((-4 - 4 * torch.rand(len(reply))).tolist())

    found = []
    for group in range(5):
        for number in range(4):
            parts = [conversation() for _ in range(2 + number)]
            reward = float(group == 0 or number % 2)
            found.append(rollout(f"g{group}r{number}", f"g{group}", reward, parts, vocabulary))
    return found


@pytest.fixture(scope="module")
def step(folders, rollouts, tmp_path_factory):
    """A training step on what was recorded of them."""
    folder = tmp_path_factory.mktemp("verl")
    random.seed(0)  # which conversations too many are dropped
    with pytest.MonkeyPatch.context() as patch, running_gateway() as url:
        with verl_on_a_cpu(patch, folder):
            recipe = small_recipe(folders[0], SMALL)
            yield TrainingStep(recipe, rollouts, url, reference=folders[1])


def by_grpo_loss(folders, update, rollouts):
    """Loss and gradient of an update, from the recorded conversations and its weights alone."""
    first, reference, policy = (
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        for folder in (*folders, folders[0])
    )
    policy.load_state_dict(update.weights)
    vocabulary = rollouts[0].conversations[0].tokenizer
    rows, _ = make_training_rows(
        rollouts, vocabulary=vocabulary, settings=PAPER, baseline=Baseline()
    )
    names = [
        (place, turn)
        for place, one in enumerate(rollouts)
        for turn in range(len(one.conversations))
    ]
    named = dict(zip(names, rows, strict=True))
    batch = collate([named[name] for name in update.rows])
    logprobs, _ = score(policy, batch)
    terms = grpo_loss(
        logprobs,
        batch.advantages,
        old=score(first, batch)[0].detach(),
        sampled=batch.sampled,
        reference=score(reference, batch)[0].detach(),
    )
    loss = terms.loss / len(logprobs)
    loss.backward()
    return float(loss), {name: weight.grad for name, weight in policy.named_parameters()}


def test_each_of_16_updates_has_the_loss_and_the_gradient_of_grpo_loss(step, folders, rollouts):
    assert len(step.updates) == PAPER.updates == 16
    for update in step.updates:
        loss, gradient = by_grpo_loss(folders, update, rollouts)
        assert update.loss == pytest.approx(loss, abs=1e-5)
        for name, found in update.gradient.items():
            torch.testing.assert_close(found, gradient[name], atol=1e-5, rtol=1e-4)

    # No branch of the loss was left out.
    assert step.metrics["actor/pg_clipfrac"] > 0.1
    assert step.metrics["actor/pg_clipfrac_lower"] > 0.001
    assert step.metrics["rollout_corr/rollout_is_max"] == PAPER.importance_cap
    assert step.metrics["actor/kl_loss"] > 0.1
    assert {update.micro_batches for update in step.updates} == {1, 2}
    assert step.metrics["training/n_sample_dropped/same_reward"] == 6


def assert_is_trained(folder, step):
    """The model in a folder has the weights after the step, in bfloat16, and is not the first."""
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, weight in step.actor_rollout_wg.actor.engine.module.named_parameters():
        assert torch.equal(found[name].bfloat16(), weight.full_tensor().bfloat16())
        assert not torch.equal(weight.full_tensor(), step.updates[0].weights[name])


def test_a_checkpoint_is_evaluated_by_one_command(step, tmp_path):
    step.actor_rollout_wg.save_checkpoint(str(tmp_path / "actor"), global_step=1)

    given = ["--model", f"hf:{tmp_path / 'actor' / 'huggingface'}", "--lengths", "1k"]
    row = {"question": "Who signed?", "answers": ["Ann"], "title": "", "text": "Ann signed. " * 300}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row))
    given += ["--tasks", f"qa:{tmp_path / 'asked.jsonl'}", "--set", "chunk_tokens=400"]
    given += [
        "--set",
        "memory_tokens=16",
        "--set",
        "answer_tokens=16",
        "--out",
        str(tmp_path / "results"),
    ]
    done = CliRunner().invoke(app, ["eval", *given])

    assert done.exit_code == 0, done.output
    assert "qa_asked" in (tmp_path / "results" / "report.md").read_text()
    assert_is_trained(tmp_path / "actor" / "huggingface", step)


def test_shards_without_a_model_are_merged_by_one_command_of_verl_s(step, tmp_path, monkeypatch):
    step.actor_rollout_wg.save_checkpoint(str(tmp_path / "actor"), global_step=1)
    given = ["--backend", "fsdp", "--local_dir", str(tmp_path / "actor")]
    monkeypatch.setattr("sys.argv", ["merge", "merge", *given, "--target_dir", str(tmp_path / "m")])

    merge()

    assert_is_trained(tmp_path / "m", step)
    assert AutoTokenizer.from_pretrained(tmp_path / "m").chat_template


class Counting(AgentLightningRayPPOTrainer):
    """A training step at the recipe's own size: the model, and nothing else, is missing."""

    def __init__(self, recipe, rollouts):
        self.config, self.rollouts = recipe, rollouts
        self.is_async = self.use_critic = self.use_reference_policy = False
        self.global_steps, self._train_dataloader_iter = 1, None
        self.train_dataloader = [{"question": np.array(["?"], dtype=object)}]
        self.checkpoint_manager = SimpleNamespace(
            sleep_replicas=lambda: None, update_weights=lambda _step: None
        )
        self.actor_rollout_wg = SimpleNamespace(update_actor=self._count)
        self.metrics, _ = self._train_step({}, curr_step_profile=False)

    def _rollout(self, _gen_batch, is_train):
        return built(self.rollouts), {}

    def _compute_old_log_prob(self, batch):
        nothing = {"old_log_probs": torch.zeros(batch.batch["response_mask"].shape)}
        return type(batch).from_dict(nothing), 0.0

    def _count(self, data):
        each = tensordict_utils.get(data, "mini_batch_size")
        devices = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
        assert len(data) % each == each % devices == 0
        self.updates = len(data) // each * tensordict_utils.get(data, "epochs")
        return tensordict_utils.get_tensordict({}, {"metrics": {"mfu": 0.0}})


def built(rollouts):
    """Agent Lightning's batch of (group, reward, number of conversations)."""
    adapter = RolloutAdapter(
        max_prompt_length=4, max_response_length=2, device=torch.device("cpu"), pad_token_id=0
    )
    triplet = Triplet(
        prompt={"token_ids": [1, 2]}, response={"token_ids": [3], "log_probs": [-1.0]}
    )
    batch, _ = adapter.get_train_data_batch(
        [
            CompletedRollout(
                rollout_id=str(number),
                data_id=group,
                step=1,
                sample_idx_in_step=0,
                enqueue_time=0.0,
                final_reward=reward,
                triplets=[triplet] * conversations,
            )
            for number, (group, reward, conversations) in enumerate(rollouts)
        ]
    )
    return batch


@pytest.mark.parametrize(
    ("conversations", "lost", "updates"),
    [
        ((7,), 0, 16),  # documents of 28,000 tokens
        ((8,), 0, 16),  # of 32,000
        ((7, 8, 8), 0, 16),
        ((7,), 1, 15),  # the least, less what was never asked
    ],
)
def test_a_batch_of_the_recipe_s_size_is_16_updates(folders, conversations, lost, updates):
    sizes = {"data.max_prompt_length": 4, "data.max_response_length": 2}
    recipe = small_recipe(folders[0], sizes)
    questions, size = recipe.data.train_batch_size, recipe.actor_rollout_ref.rollout.n
    rollouts = [
        (f"g{number // size}", float(number % 2), conversations[number % len(conversations)])
        for number in range(questions * size - lost)
    ]

    counting = Counting(recipe, rollouts)

    assert (questions, size) == (128, 16)
    assert counting.updates == updates
    assert counting.metrics["training/n_sample_trained"] == updates * 896


def test_verl_accepts_the_recipe(folders):
    recipe = small_recipe(folders[0], {})

    validate_config(
        config=recipe,
        use_reference_policy=need_reference_policy(recipe),
        use_critic=need_critic(recipe),
    )

    assert need_reference_policy(recipe)
    assert not need_critic(recipe)


def theirs(rewards):
    """The advantages of the rollouts of a group."""
    batch = built([("g", reward, 1) for reward in rewards])
    batch.batch["response_mask"] = compute_response_mask(batch)
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    options = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "num_repeat": len(rewards)}
    batch, _ = compute_rollout_level_advantage(batch, **options, norm_adv_by_std_in_grpo=False)
    return batch.batch["advantages"][:, 0].float().tolist()


@pytest.mark.parametrize(
    "rewards",
    [
        [0.0] * 11 + [1.0] * 5,
        [0.0, 0.25, 0.5, 1.0],
    ],
)
def test_rewards_of_few_binary_places_keep_their_advantages(rewards):
    assert theirs(rewards) == group_advantages(rewards, ["g"] * len(rewards))


@pytest.mark.parametrize(
    "rewards",
    [
        [0.3, 0.0, 1.0, 1.0],  # 0.3 is 0.30078125 in bfloat16
        [0.0, 0.0, 1.0],  # and so is the mean no third
    ],
)
def test_all_other_rewards_are_rounded_to_bfloat16(rewards):
    """As it is in 1.0.2. If it fails, Agent Lightning has mended it: say so in docs/training.md."""
    ours = group_advantages(rewards, ["g"] * len(rewards))

    worst = max(abs(a - b) for a, b in zip(theirs(rewards), ours, strict=True))

    assert 1e-4 < worst < 4e-3


def test_a_rollout_that_is_left_alone_in_its_group_has_its_reward_as_advantage():
    assert theirs([1.0]) == [1.0]
    assert group_advantages([1.0], ["g"]) == [0.0]


def test_verl_counts_the_warm_up_in_batches(step):
    assert step.actor_rollout_wg.actor.engine.lr_scheduler.last_epoch == 1
    assert len(step.updates) == 16


def test_verl_bounds_the_divergence_of_a_token_at_10():
    policy, reference = torch.tensor([-9.0]), torch.tensor([-1.0])
    options = {"old": policy, "sampled": policy, "reference": reference}

    assert kl_penalty(policy, reference, "low_var_kl").item() == 10
    assert grpo_loss(policy, torch.zeros(1), **options).kl > 1000
