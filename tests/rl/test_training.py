"""Whole training runs, on a tiny model."""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from langchain_core.messages import HumanMessage
from lazy_module import LazyModule
from paragraphs import natural
from rl.training_child import lines, question, reward, settings
from servers.warm_python import PIPE, TRAINING, warm_python
from typer.testing import CliRunner

from memagent_graph.cli.app import app
from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.rl.grpo import TrainingSettings
from memagent_graph.rl.rollouts import RolloutRunner, make_engine
from memagent_graph.rl.traces import End, JSONLinesSink
from memagent_graph.rl.training import Training

CHILD = Path(__file__).with_name("training_child.py")
torch, safetensors, transformers = map(LazyModule, ("torch", "safetensors.torch", "transformers"))
local = LazyModule("memagent_graph.models.transformers")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("torch"), reason="No PyTorch")]


def collecting(folder, **options):
    """A runner of rollouts with the policy as it is, short as those of `settings`."""
    model = local.ChatTransformers(
        model=str(folder), dtype="float32", temperature=1.0, logprobs=True
    )
    budgets = ReadingConfig(chunk_tokens=120, memory_tokens=5, answer_tokens=5)
    given = {"config": budgets, "reward": reward, **options}
    return RolloutRunner(model, transformers.AutoTokenizer.from_pretrained(folder), **given)


def trained(folder, out, report=lambda _: None, **fields):
    training = Training(settings(folder, out, **fields), questions=question, reward=reward)
    asyncio.run(training.run(report))
    return training


def test_a_killed_run_goes_on_bit_by_bit(folder, tmp_path):
    trained(folder, tmp_path / "straight", iterations=4)
    python = warm_python(*TRAINING)
    command = [sys.executable, CHILD, folder, tmp_path / "killed", "iterations=4"]
    for iteration in ("2", "3"):  # an evaluation follows the first, and none the second
        child = python.start(command, stdout=PIPE)
        while child.stdout.readline().strip() != iteration:
            assert child.poll() is None
        child.kill()
        assert child.returncode == -9
    python.run(command, check=True)

    assert lines(tmp_path / "killed") == lines(tmp_path / "straight")
    weights = [
        safetensors.load_file(tmp_path / name / "model" / "model.safetensors")
        for name in ("straight", "killed")
    ]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])


def test_a_run_that_is_stopped_keeps_a_checkpoint_and_goes_on(folder, tmp_path):
    length = {"iterations": 3, "save_every": 100}
    trained(folder, tmp_path / "straight", **length)
    given = settings(folder, tmp_path / "out", **length)
    stopping = Training(given, questions=question, reward=reward)
    asyncio.run(stopping.run(lambda line: line["iteration"] and stopping.stop()))
    assert [line["iteration"] for line in lines(tmp_path / "out") if "reward" in line] == [1]

    trained(folder, tmp_path / "out", **length)

    assert lines(tmp_path / "out") == lines(tmp_path / "straight")


def test_the_engine_reads_with_the_weights_that_were_trained_until_the_run_ends(folder, tmp_path):
    engine, _ = make_engine(settings(folder, tmp_path, iterations=2))

    def says(model):
        return model.invoke([HumanMessage("What is a class?")], temperature=0, max_tokens=20).text

    before, heard = says(engine), []
    training = trained(folder, tmp_path, lambda _: heard.append(says(engine)), iterations=2)
    saved = local.ChatTransformers(model=str(tmp_path / "model"), dtype="float32")

    assert training.trainer.version == 4
    assert heard[-1] == says(saved) != before
    assert says(engine) == before


def test_the_same_seed_brings_the_same_rollouts_whatever_runs_beside(folder):
    samples = [question(index) for index in range(3)]

    def collected(concurrency, seed):
        runner = collecting(folder, concurrency=concurrency, seed=seed)
        found = asyncio.run(runner.collect(samples, times=3)).rollouts
        return [[one.completion_ids for one in rollout.conversations] for rollout in found]

    together = collected(64, 0)

    assert together == collected(1, 0)
    assert together != collected(64, 1)
    assert len({str(rollout) for rollout in together}) > 3


def test_an_empty_reply_is_recorded_and_costs_the_reward(folder, monkeypatch):
    original = local.ChatTransformers._agenerate

    async def silent_at_first(self, messages, *args, **options):
        result = await original(self, messages, *args, **options)
        if "empty: this is the first" in messages[0].content:
            result.generations[0].message.content = ""
        return result

    monkeypatch.setattr(local.ChatTransformers, "_agenerate", silent_at_first)
    runner = collecting(folder, reward=lambda answer, _: 1.0 if answer else -1.0)
    found = asyncio.run(runner.collect([question(0)], times=2))

    assert not found.skipped
    assert [one.reward for one in found.rollouts] == [-1.0, -1.0]
    assert all(len(one.conversations) > 2 for one in found.rollouts)


@pytest.mark.parametrize(("flat", "asked"), [({2}, [2, 3, 4]), ({2, 3, 4, 5}, [2, 3, 4, 5, 6, 7])])
def test_groups_without_spread_are_refilled_with_new_questions(folder, tmp_path, flat, asked):
    found = []
    without = {question(index).answers for index in flat}

    def counted(index):
        found.append(index)
        return question(index)

    def spread(answer, truths):
        return 0.5 if truths in without else reward(answer, truths)

    given = settings(folder, tmp_path, iterations=1, refills=2, evaluate_every=0)
    training = Training(given, questions=counted, reward=spread)
    metrics = asyncio.run(training.run(lambda _: None))

    assert [index for index in found if index > 1] == asked
    assert (metrics["groups_dropped"], metrics["rollouts"]) == (0, 6)


def test_recorded_rollouts_are_trained_on_without_generating(folder, tmp_path, monkeypatch):
    traces = tmp_path / "traces.jsonl"
    samples = [question(index) for index in range(4)]
    found = asyncio.run(collecting(folder).collect(samples, times=3)).rollouts
    sink = JSONLinesSink(traces)
    for rollout in found:
        end = End(rollout.rollout, len(rollout.conversations), rollout.answer, rollout.reward)
        for record in (*rollout.conversations, end):
            sink.write(record)
    sink.close()
    with traces.open("a") as file:
        file.write('{"kind": "conversation", "torn')
    monkeypatch.setattr(local.ChatTransformers, "_agenerate", None)
    told, given = [], {"traces": (str(traces),), "epochs": 2, "questions": 2}

    training = trained(folder, tmp_path / "out", told.append, **given)

    assert training.trainer.version == 2 * 2 * 2
    assert sum(any(name.startswith("skipped") for name in line) for line in told) == 1
    assert [line["rollouts"] for line in lines(tmp_path / "out")] == [6] * 4


def test_an_iteration_in_which_no_reading_succeeds_says_why(folder, tmp_path):
    def unreadable(index):
        empty = question(index)
        return type(empty)(**{**vars(empty), "pieces": lambda: iter([])}) if index > 1 else empty

    training = Training(settings(folder, tmp_path), questions=unreadable, reward=reward)
    with pytest.raises((TraceError, ValueError), match=r"nothing to read|No reading|empty"):
        asyncio.run(training.run(lambda _: None))


def short_run(folder, out):
    rows = [(f"Who runs mill {n}?", [f"Fox {n}"], "Mill", f"{n}: Fox {n}.") for n in range(8)]
    tokens = {"length": 80, "chunk_tokens": 40, "memory_tokens": 5, "answer_tokens": 5}
    numbers = {"iterations": 1, "questions": 2, "group_size": 2, "held_out": 1}
    tasks = [f"qa:{natural(out.parent, rows)}"]
    given = {"model": str(folder), "out": str(out), "tasks": tasks, "reward": "substring"}
    return given | tokens | numbers


def test_a_file_of_settings_is_overridden_by_the_command_line(folder, tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(short_run(folder, tmp_path / "out") | {"iterations": 9}))

    result = CliRunner().invoke(app, ["train", str(run), "--set", "iterations=1"])

    assert result.exit_code == 0, result.output
    assert [line["iteration"] for line in lines(tmp_path / "out")] == [0, 1]
    assert (tmp_path / "out" / "model" / "tokenizer.json").exists()


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from memagent_graph.cli import main
main()
"""


@pytest.mark.parametrize("room", ["nothing", "no weights", "weights alone"])
def test_a_full_disk_ends_training_with_one_line_and_the_command_continues(folder, tmp_path, room):
    weights = (folder / "model.safetensors").stat().st_size
    limit = {"nothing": 8, "no weights": 3_000, "weights alone": weights + 5_000}[room]
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(short_run(folder, tmp_path / "out")))
    python = warm_python(*TRAINING)

    done = python.run([sys.executable, "-c", LIMITED, limit, "train", run])

    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    if room == "nothing":
        assert last == "memagent: error: the output is incomplete: File too large."
    else:
        assert last.startswith(f"memagent: error: {tmp_path / 'out' / 'checkpoints'}")
        assert last.endswith("it continues from the last checkpoint.")
    python.run([sys.executable, "-m", "memagent_graph", "train", run], check=True)


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "missing.yaml"], "cannot be read"),
    (["train", "--set", "model=x", "--set", "out=o", "--set", "lerning_rate=1"], "lerning_rate"),
    (["train", "--set", "model"], "FIELD=VALUE"),
    (["train", "--set", "model=/nowhere", "--set", "out=o"], "cannot be loaded"),
    (["train", "--set", "model={folder}", "--set", "out=o", "--set", "traces=[away]"], "no traces"),
    (["train", "--set", "model={folder}", "--set", "out=o", "--set", "tasks=['qa:away']"], "away"),
])  # fmt: skip
def test_what_cannot_be_trained_is_said(arguments, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: 1 / 0)
    result = CliRunner().invoke(app, [one.format(folder=folder) for one in arguments])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("engine", ["hf", "http://127.0.0.1:1/v1"])
def test_an_engine_that_would_draw_tokens_otherwise_is_refused(engine, folder, tmp_path):
    fields = {"engine": engine, "engine_options": {"top_p": 0.9}}
    with pytest.raises(ConfigurationError, match="top_p"):
        make_engine(settings(folder, tmp_path, **fields))


def test_a_served_policy_says_in_each_request_that_nothing_is_cut(folder, tmp_path, openai_server):
    given = settings(folder, tmp_path, engine=openai_server.base_url, engine_options={})

    make_engine(given)[0].invoke([HumanMessage("What is a class?")])

    wanted = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    assert {name: openai_server.requests[0].get(name) for name in wanted} == wanted


def test_an_engine_in_the_process_is_on_the_device_that_it_trains_on(folder, tmp_path):
    placed, _ = make_engine(settings(folder, tmp_path, engine_options={}), device="meta")
    assert next(placed._engine.model.parameters()).device.type == "meta"
    with pytest.raises(ConfigurationError, match="start a vLLM server"):
        make_engine(settings(folder, tmp_path, engine="vllm", engine_options={}), processes=2)


def test_unknown_engines_and_rewards_are_refused(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="hf, vllm"):
        make_engine(settings(folder, tmp_path, engine="tgi"))
    with pytest.raises(ConfigurationError, match="no reward"):
        Training(TrainingSettings(model=str(folder), out=tmp_path, reward="best"))
