"""The trainer against a plain reference: conversation by conversation, nothing packed."""

import copy
import math
from importlib.util import find_spec

import pytest
from lazy_module import LazyModule
from rl.rollouts import rollout, some_rollouts
from tiny_model import tiny_model

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.rl.grpo import Baseline, GRPOSettings, TrainingRow
from memagent_graph.rl.traces import fingerprint

torch, transformers = LazyModule("torch"), LazyModule("transformers")
accelerate, trainers = LazyModule("accelerate.state"), LazyModule("memagent_graph.rl.trainer")
pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="No PyTorch")


def new_trainer(model, tokenizer, settings):
    return trainers.MultiConversationGRPOTrainer(model, tokenizer, settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"), vocabulary=300, max_length=256, spread=0.1)


@pytest.fixture
def model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def reference_logprobs(model, one):
    ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
    logprobs = torch.log_softmax(model(ids).logits[0].double(), -1)
    start = len(one.prompt_ids)
    return torch.stack(
        [logprobs[start + at - 1, token] for at, token in enumerate(one.completion_ids)]
    )


def reference_loss(model, frozen, before, rollouts, settings):
    """The formulas of `grpo_loss`, written out for one conversation at a time."""
    total, tokens = 0.0, 0
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    for one in rollouts:
        rewards = [other.reward for other in rollouts if other.group == one.group]
        advantage = one.reward - sum(rewards) / len(rewards)
        for part in one.conversations:
            new = reference_logprobs(model, part)
            with torch.no_grad():
                old, base = (reference_logprobs(other, part) for other in (before, frozen))
            for at in range(len(part.completion_ids)):
                ratio = torch.exp(new[at] - old[at])
                gain = min(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
                if advantage < 0:
                    gain = max(gain, torch.tensor(settings.dual_clip * advantage))
                weight = min(math.exp(float(old[at]) - part.logprobs[at]), settings.importance_cap)
                away = base[at] - new[at]
                total = total - weight * gain
                total = total + settings.kl_weight * (torch.exp(away) - away - 1)
                tokens += 1
    return total / tokens


MIXES = [
    {"longest": 8, "kl_weight": 0.0, "token_budget": 4096},
    {"longest": 60, "kl_weight": 0.1, "token_budget": 96},
    {"longest": 40, "kl_weight": 1e-3, "token_budget": 256, "clip_high": 0.05, "clip_low": 0.02},
    {"longest": 200, "kl_weight": 0.5, "token_budget": 230, "importance_cap": 1.2},
    {"longest": 20, "kl_weight": 0.0, "token_budget": 256, "dual_clip": 1.05},
]


def shaken(model, amount, seed):
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * amount)
    return other


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_loss_and_gradient_are_those_of_each_conversation_alone(model, tokenizer, mix):
    fields = {name: value for name, value in mix.items() if name != "longest"}
    settings = GRPOSettings(**fields, learning_rate=1e-12, max_grad_norm=1e9, warmup_steps=0)
    rollouts = some_rollouts(tokenizer, seed=mix["longest"], longest=mix["longest"])
    frozen, before = copy.deepcopy(model), copy.deepcopy(model)
    trained = shaken(model, 0.02, seed=1)
    trainer = new_trainer(copy.deepcopy(model), tokenizer, settings)
    trainer.model.load_state_dict(trained.state_dict())  # the reference stays what it was
    # A step that begins with one policy and is now at another, as after a first update.
    rows, _ = rows_of(rollouts, tokenizer, settings)
    batches = trainer._batches(rows)
    with torch.no_grad():
        old = [trainers.score(before, batch)[0] for batch in batches]
    gradients = {}
    trainer._optimizer.step = lambda: gradients.update(
        {name: weight.grad.clone() for name, weight in trainer.model.named_parameters()}
    )
    counted = "loss", "kl", "clip_fraction", "importance", "entropy", "tokens", "grad_norm"
    sums = dict.fromkeys(counted, 0.0)

    trainer._update(batches, old, sum(len(row.completion) for row in rows), sums)

    expected = reference_loss(trained, frozen, before, rollouts, settings)
    expected.backward()
    tokens = sum(one.tokens for one in rollouts)
    assert sums["loss"] / tokens == pytest.approx(float(expected.detach()), abs=1e-5)
    assert sums["clip_fraction"] > 0
    for name, weight in trained.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, atol=1e-5, rtol=1e-4)


def rows_of(rollouts, tokenizer, settings):
    from memagent_graph.rl.grpo import make_training_rows

    return make_training_rows(
        rollouts, vocabulary=fingerprint(tokenizer), settings=settings, baseline=Baseline()
    )


def test_the_first_of_several_updates_is_on_policy_and_later_ones_are_clipped(model, tokenizer):
    rollouts = some_rollouts(tokenizer, seed=3)
    settings = GRPOSettings(learning_rate=0.05, updates=3, warmup_steps=0, clip_high=0.01)
    trainer = new_trainer(model, tokenizer, settings)

    metrics = trainer.step(rollouts)

    assert trainer.version == 3
    assert 0 < metrics["clip_fraction"] < 1
    one = new_trainer(model, tokenizer, GRPOSettings(warmup_steps=0, updates=1))
    assert one.step(rollouts)["clip_fraction"] == 0


def test_probability_moves_towards_the_better_rollout(model, tokenizer):
    vocabulary, prompt, ends = fingerprint(tokenizer), (5, 6, 7), ((20, 21), (30, 31))
    good, bad = (
        rollout(name, "g", reward, [(prompt, end, (-5.0, -5.0))], vocabulary)
        for name, reward, end in zip("ab", (1.0, 0.0), ends, strict=True)
    )
    settings = GRPOSettings(learning_rate=1e-3, warmup_steps=0, updates=1)
    trainer = new_trainer(model, tokenizer, settings)
    batch = trainers.collate([TrainingRow(prompt, end, (0.0, 0.0), 1.0) for end in ends])

    def likelihoods():
        return trainers.score(trainer.model, batch)[0].view(2, 2).sum(-1).tolist()

    before = likelihoods()
    for _ in range(5):
        trainer.step([good, bad])
    after = likelihoods()

    assert after[0] > before[0]
    assert after[1] < before[1]


def test_groups_without_spread_train_nothing_and_are_counted(model, tokenizer):
    before = copy.deepcopy(model.state_dict())
    rollouts = [one for one in some_rollouts(tokenizer, seed=5) if one.group == "g0"]
    trainer = new_trainer(model, tokenizer, GRPOSettings(kl_weight=0))

    metrics = trainer.step(rollouts)

    told = metrics["rollouts_without_spread"], metrics["tokens"], trainer.version
    assert told == (len(rollouts), 0, 0)
    for name, weight in trainer.weights().items():
        assert torch.equal(weight, before[name])


def test_rollouts_that_cannot_be_trained_on_are_refused(model, tokenizer):
    vocabulary = fingerprint(tokenizer)
    short, long = ((1,), (2,), (-1.0,)), ((1,) * 99, (2,), (-1.0,))
    trainer = new_trainer(model, tokenizer, GRPOSettings(token_budget=64))
    for rollouts, message in (
        ([], "at least one"),
        ([rollout("r", "g", None, [short], vocabulary)], "no reward"),
        ([rollout("r", "g", 1.0, [short], "other")], "tokenizer"),
        ([rollout("r", "g", 1.0, [long], vocabulary)], "raise it"),
    ):
        with pytest.raises(TraceError, match=message):
            trainer.step(rollouts)


def test_a_lone_rollout_is_measured_against_those_before_it(model, tokenizer):
    vocabulary = fingerprint(tokenizer)

    def lone(name, reward):
        return rollout(name, name, reward, [((5, 6), (20, 21), (-5.0, -5.0))], vocabulary)

    trainer = new_trainer(model, tokenizer, GRPOSettings(kl_weight=0))

    assert trainer.step([lone("a", 0.5), lone("b", 0.5)])["tokens"] == 0
    assert trainer.step([lone("c", 1.0)])["loss"] < 0
    assert trainer.step([lone("d", 0.0)])["loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [None, 4])
def test_training_goes_on_bit_by_bit_from_a_checkpoint(model, tokenizer, tmp_path, lora_rank):
    settings = GRPOSettings(learning_rate=1e-3, updates=2, warmup_steps=3, lora_rank=lora_rank)
    steps = [some_rollouts(tokenizer, seed=seed) for seed in range(4)]
    straight, first, second = (
        new_trainer(copy.deepcopy(model), tokenizer, settings) for _ in range(3)
    )
    expected = [straight.step(rollouts) for rollouts in steps]
    for rollouts in steps[:2]:
        first.step(rollouts)
    first.save(tmp_path)

    second.restore(tmp_path)
    found = [second.step(rollouts) for rollouts in steps[2:]]

    for one, other in zip(found, expected[2:], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    for name, weight in straight.weights().items():
        assert torch.equal(second.weights()[name], weight)


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_a_launch_that_would_shard_the_model_is_refused(model, tokenizer, monkeypatch, name):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(ConfigurationError, match="memagent-agent-lightning"):
        new_trainer(model, tokenizer, GRPOSettings())


@pytest.fixture
def fresh_accelerate():
    """Precision is the process's: no other test is to have chosen it, nor to inherit it."""
    accelerate.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_reference_rounds_as_the_policy_does(model, tokenizer):
    settings = GRPOSettings(mixed_precision="bf16", updates=1, learning_rate=1e-12)
    assert new_trainer(model, tokenizer, settings).step(some_rollouts(tokenizer, seed=4))["kl"] == 0


def test_completions_that_were_cut_off_teach_nothing_if_so_chosen(model, tokenizer):
    parts, vocabulary = [((5, 6, 7), (20, 21), (-5.0, -5.0))], fingerprint(tokenizer)
    found = [
        rollout("a", "g", 1.0, parts, vocabulary, finish_reason="length"),
        rollout("b", "g", 0.0, parts, vocabulary, finish_reason="stop"),
    ]

    def tokens(*, mask):
        settings = GRPOSettings(mask_overlong=mask, kl_weight=0, updates=1)
        return new_trainer(model, tokenizer, settings).step(found)["tokens"]

    assert (tokens(mask=False), tokens(mask=True)) == (4, 2)


@pytest.mark.slow
def test_adapters_train_and_are_merged_into_the_weights(model, tokenizer, tmp_path):
    options = {"learning_rate": 1e-2, "warmup_steps": 0, "kl_weight": 0.1, "updates": 1}
    settings, names = GRPOSettings(lora_rank=4, **options), set(model.state_dict())
    trainer = new_trainer(model, tokenizer, settings)
    rollouts = some_rollouts(tokenizer, seed=6)

    first = trainer.step(rollouts)
    second = trainer.step(rollouts)
    trainer.save_model(tmp_path, tokenizer)

    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 1e-4
    assert set(trainer.weights()) == names
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, trainer.weights()[name])


def test_checkpointed_activations_give_the_same_gradient(model, tokenizer):
    rollouts, norms = some_rollouts(tokenizer, seed=7), []
    for checkpointing in (False, True):
        settings = GRPOSettings(gradient_checkpointing=checkpointing, updates=1)
        trainer = new_trainer(copy.deepcopy(model), tokenizer, settings)
        norms.append(trainer.step(rollouts)["grad_norm"])

    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_batches_keep_to_budget_and_padding_and_lose_no_row(tokenizer):
    rows, _ = rows_of(some_rollouts(tokenizer, seed=8, groups=9), tokenizer, GRPOSettings())
    batches = [*trainers.pack(rows, token_budget=200)]
    assert sorted(map(id, rows)) == sorted(id(row) for batch in batches for row in batch)
    for batch in batches:
        size = len(batch) * max(map(len, batch))
        assert size <= 200
        assert sum(map(len, batch)) >= 0.9 * size


def test_conversations_sampled_at_another_temperature_are_warned_of(model, tokenizer):
    vocabulary, part = fingerprint(tokenizer), ((1,), (2,), (-1.0,))
    cool = rollout("r", "g", 1.0, [part], vocabulary, sampling={"temperature": 0.5})
    trainer = new_trainer(model, tokenizer, GRPOSettings())
    with pytest.warns(UserWarning, match="temperature"):
        trainer.step([cool])
