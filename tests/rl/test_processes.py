"""Training in several processes, as `accelerate launch` starts them for GPUs."""

import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from lazy_module import LazyModule
from rl.training_child import lines, settings
from servers.redis_server import free_port
from servers.warm_python import TRAINING, warm_python

from memagent_graph.rl.training import replay

HERE = Path(__file__).parent
torch, safetensors = LazyModule("torch"), LazyModule("safetensors.torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("torch"), reason="No PyTorch")]


def run(processes, child, *arguments):
    """Run a script in so many processes, with the variables that `accelerate launch` sets."""
    number = str(processes)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    rendezvous |= {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}

    def one(rank):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **rendezvous}
        environment = os.environ | {"ACCELERATE_USE_CPU": "true"} | (place if processes > 1 else {})
        command = [sys.executable, HERE / child, *arguments]
        return warm_python(*TRAINING).run(command, env=environment, check=True, timeout=600)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, range(processes)))


def weights_in(folder):
    return safetensors.load_file(folder / "model.safetensors")


def asked(out):
    """Each process and question that it was trained on."""
    found = [line.split() for line in Path(f"{out}.asked").read_text().splitlines()]
    held_out = settings(out, out).held_out
    return [(rank, int(index)) for rank, index in found if int(index) >= held_out]


def test_two_processes_take_the_step_that_one_takes_on_all_of_it(folder, tmp_path):
    found = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        run(processes, "processes_child.py", folder, out)
        found.append(json.loads((out / "found.json").read_text()))

    before, one, two = map(weights_in, (folder, tmp_path / "1", tmp_path / "2"))
    assert [each["processes"] for each in found] == [1, 2]
    assert found[1]["wrapper_left"] is False  # or the process may never end
    assert found[1]["grad_norm"] == pytest.approx(found[0]["grad_norm"], rel=1e-4)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-5, rtol=1e-4)
    assert any((one[name] - before[name]).abs().max() > 1e-3 for name in one)


def test_a_process_with_nothing_to_learn_from_keeps_step_with_the_others(folder, tmp_path):
    fields, without_spread = {"kl_weight": 0, "updates": 2}, "g0"

    run(2, "processes_child.py", folder, tmp_path, json.dumps(fields), without_spread)

    before, after = weights_in(folder), weights_in(tmp_path)
    assert any((after[name] - before[name]).abs().max() > 1e-3 for name in before)


def test_a_run_of_two_processes_goes_on_exactly_where_it_was_stopped(folder, tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    fields = ("iterations=2", "refills=1", "token_budget=640", "lora_rank=4")
    fields += ("group_size=2", "evaluate_every=0")
    run(2, "training_child.py", folder, straight, *fields)
    run(2, "training_child.py", folder, stopped, *fields, "stop=1")
    assert [line["iteration"] for line in lines(stopped) if "reward" in line] == [1]

    run(2, "training_child.py", folder, stopped, *fields)

    assert lines(stopped) == lines(straight)
    one, two = (weights_in(out / "model") for out in (straight, stopped))
    assert all(torch.equal(weight, two[name]) for name, weight in one.items())
    questions = asked(straight)
    assert sorted(asked(stopped)) == sorted(questions)
    assert {rank for rank, _ in questions} == {"0", "1"}
    assert len({index for _, index in questions}) == len(questions) >= 2 * 2 * 2


def test_replay_shares_the_groups_out_and_no_process_steps_alone():
    rollouts = [SimpleNamespace(group=f"g{index % 5}") for index in range(15)]
    chosen = SimpleNamespace(seed=0, epochs=2, questions=2)

    def replayed(rank):
        took = []
        process = SimpleNamespace(process_index=rank, num_processes=2)
        trainer = SimpleNamespace(accelerator=process, version=0)
        trainer.step = lambda step: took.append([one.group for one in step]) or {}
        assert [*replay(trainer, rollouts, chosen)]
        return took

    steps = replayed(0), replayed(1)

    # Of five groups an epoch, two and two, and the fifth in both.
    assert [[len(step) for step in took] for took in steps] == [[6, 3, 6, 3]] * 2
    for first in (0, 2):
        epoch = [*steps[0][first], *steps[1][first], *steps[0][first + 1]]
        assert Counter(epoch) == dict.fromkeys(("g0", "g1", "g2", "g3", "g4"), 3)
        assert steps[0][first + 1] == steps[1][first + 1]
