"""A training step of Agent Lightning and verl with the recipe, against `grpo_loss`; on a CPU."""

import json
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

import torch
from rl.rollouts import rollout
from tiny_model import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner
from verl.model_merger.__main__ import main as merge
from verl.trainer.main_ppo import need_critic, need_reference_policy, validate_config

from memagent_graph.cli.app import app
from memagent_graph.rl.grpo import Baseline, GRPOSettings, grpo_loss, make_training_rows
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
    given += ["--set", "memory_tokens=16", "--set", "answer_tokens=16"]
    given += ["--out", str(tmp_path / "results")]
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


def test_verl_accepts_the_recipe(folders):
    recipe = small_recipe(folders[0], {})

    validate_config(
        config=recipe,
        use_reference_policy=need_reference_policy(recipe),
        use_critic=need_critic(recipe),
    )

    assert need_reference_policy(recipe)
    assert not need_critic(recipe)
