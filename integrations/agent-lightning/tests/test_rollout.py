import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from servers.openai_server import OpenAIServer
from servers.redis_server import free_port
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_agent_lightning import MemAgentRollout, ReadingTask, rollout
from memagent_agent_lightning.tasks import write_tasks
from memagent_graph import ReadingConfig
from memagent_graph.errors import ConfigurationError
from memagent_graph.rl.grpo import GRPOSettings
from memagent_graph.text.tokens import load_tokenizer

RECIPE = Path(__file__).parents[1] / "recipes" / "qwen2.5-7b.yaml"
SMALL = ReadingConfig(chunk_tokens=200, memory_tokens=100, retry_interval=0.01, max_attempts=2)
FILLER = "It rained over the harbour again, and nobody minded. " * 60
TEXT = f"{FILLER}\n\nThe vault opens at 6:40.\n\n{FILLER}"
QUESTION = "When does the vault open?"


def knows(body):
    r"""A policy that keeps what it was told, and nothing that it was not."""
    return "\\boxed{6:40}" if "6:40" in body["messages"][-1]["content"] else "Nothing yet."


@pytest.fixture
def policy():
    with closing(OpenAIServer(knows)) as server:
        yield server


@pytest.fixture
def gateway():
    """Takes events where a policy takes prompts: what it is sent can be looked at."""
    with closing(OpenAIServer(knows)) as server:
        server.script = [b"{}"]
        yield server


class SmallRollout(MemAgentRollout):
    config = SMALL


def set_up(monkeypatch, policy, gateway, **task):
    monkeypatch.setenv("AGL_OPENAI_BASE_URL", policy.base_url)
    monkeypatch.setenv("AGL_EVENT_URL", f"{gateway.base_url}/events")
    monkeypatch.setenv("AGL_KEY", "secret")
    monkeypatch.setenv("MEMAGENT_TASK", json.dumps({"question": QUESTION, **task}))


@pytest.mark.parametrize(("truth", "reward"), [("6:40", 1.0), ("7:15", 0.0)])
async def test_the_reward_is_posted_to_the_gateway(
    truth, reward, monkeypatch, policy, gateway, tmp_path
):
    (tmp_path / "vault.txt").write_text(TEXT)
    path = str(tmp_path / "vault.txt")
    set_up(monkeypatch, policy, gateway, answers=["noon", truth], path=path, index=3)

    await SmallRollout().run()

    data = {"value": reward, "source": "agent"}
    assert gateway.requests == [{"event_type": "reward", "data": data}]
    assert len(policy.requests) > 5
    keys = {sent["authorization"] for sent in policy.headers + gateway.headers}
    assert keys == {"Bearer secret"}


async def test_a_rollout_whose_policy_does_not_answer_has_no_reward(monkeypatch, policy, gateway):
    set_up(monkeypatch, policy, gateway, answers=["6:40"], document=TEXT)
    policy.script = [400]

    with pytest.raises(Exception, match="scripted"):
        await SmallRollout().run()

    assert gateway.requests == []


async def test_silence_is_worth_what_an_empty_answer_is():
    task = ReadingTask(question=QUESTION, answers=("6:40",), document="The vault opens at 6:40.")

    with closing(OpenAIServer(lambda _body: "")) as silent:

        def reward(answer, _truths):
            return 0.25 if answer == "" else 1.0

        worth = await rollout(task, silent.base_url, config=SMALL, reward=reward)

    assert worth == 0.25


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"answers": ["a"]}, "either a document or a path"),
        ({"answers": ["a"], "document": "d", "path": "p"}, "either a document or a path"),
        ({"answers": [], "document": "d"}, "answers: Tuple should have at least 1 item"),
    ],
)
async def test_what_is_no_task_is_refused_before_a_reading(
    task, said, monkeypatch, policy, gateway
):
    set_up(monkeypatch, policy, gateway, **task)

    with pytest.raises(ConfigurationError, match=said):
        await SmallRollout().run()

    assert policy.requests == []


async def test_a_variable_that_is_missing_is_named(monkeypatch, policy, gateway):
    set_up(monkeypatch, policy, gateway, answers=["a"], document="d")
    monkeypatch.delenv("AGL_OPENAI_BASE_URL")

    with pytest.raises(ConfigurationError, match="AGL_OPENAI_BASE_URL is not set"):
        await SmallRollout().run()


def test_the_recipe_has_room_for_the_longest_conversation_and_the_paper_s_settings():
    recipe = yaml.safe_load(RECIPE.read_text())
    budgets, paper = MemAgentRollout.config, GRPOSettings()
    actor, sampling = recipe["actor_rollout_ref"]["actor"], recipe["actor_rollout_ref"]["rollout"]

    lengths = recipe["data"]["max_prompt_length"], recipe["data"]["max_response_length"]
    assert sum(lengths) == budgets.window_tokens
    assert lengths[1] == budgets.memory_tokens == budgets.answer_tokens == 1024
    assert budgets.chunk_tokens == 5000
    assert actor["optim"] == {"lr": paper.learning_rate, "lr_warmup_steps": paper.warmup_steps}
    assert actor["clip_ratio_low"] == paper.clip_low
    assert actor["clip_ratio_high"] == paper.clip_high
    assert actor["clip_ratio_c"] == paper.dual_clip
    least = 128 * 16 * (-(-28_000 // budgets.chunk_tokens) + 1)  # every conversation is a row
    assert least // (actor["ppo_mini_batch_size"] * sampling["n"]) == paper.updates == 16
    assert recipe["agentlightning"]["max_ppo_update_times"] == paper.updates
    assert actor["kl_loss_coef"] == paper.kl_weight
    assert recipe["algorithm"]["norm_adv_by_std_in_grpo"] == paper.scale_advantages
    weights = recipe["algorithm"]["rollout_correction"]
    assert weights == {"rollout_is": "token", "rollout_is_threshold": paper.importance_cap}
    batch = (sampling["n"], recipe["data"]["train_batch_size"], sampling["temperature"])
    assert batch == (16, 128, 1.0)
    assert (recipe["trainer"]["nnodes"], recipe["trainer"]["n_gpus_per_node"]) == (4, 8)


def started(module, *words):
    command = [sys.executable, "-m", f"memagent_agent_lightning.{module}", *words]
    return warm_python(*COMMAND_LINE).run(command, env={**os.environ, "AGL_KEY": "secret"})


@pytest.mark.slow
def test_a_command_that_cannot_do_it_says_why_in_one_line(tmp_path):
    few = tmp_path / "hotpot.json"
    few.write_text(json.dumps(questions()))
    away = f"http://127.0.0.1:{free_port()}"

    short = started("tasks", f"qa:{few}", tmp_path / "out", "--count", 1)
    unreached = started("worker", away)

    assert short.returncode == unreached.returncode == 1
    assert "--essays" in short.stderr
    assert away in unreached.stderr
    assert short.stderr.count("\n") == unreached.stderr.count("\n") == 1


def questions():
    """A small file of HotpotQA's form."""

    def about(n):
        mill = [f"Mill {n}", [f"Mill {n} was built by Builder {n}."]]
        context = [mill, [f"Sea {n}", [f"{TEXT} That was sea {n}."]]]
        asked = {"question": f"Who built mill {n}?", "answer": f"Builder {n}"}
        return {**asked, "supporting_facts": [[f"Mill {n}", 0]], "context": context}

    return [*map(about, range(4))]


def test_tasks_are_written_with_their_evidence_among_distractors(tmp_path):
    (tmp_path / "hotpot.json").write_text(json.dumps(questions()))

    file = write_tasks(f"qa:{tmp_path / 'hotpot.json'}", tmp_path, count=3, lengths=(1500, 2000))

    tasks = [ReadingTask.model_validate_json(line) for line in file.read_text().splitlines()]
    assert len({task.question for task in tasks}) == 3
    for task in tasks:
        text = task.path.read_text()
        assert f"was built by {task.answers[0]}." in text
        assert 1400 < load_tokenizer(None).count(text) <= 2000
