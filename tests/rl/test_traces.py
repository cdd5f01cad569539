import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl.rollouts import conversation, records
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_graph.errors import MemAgentError, TraceError
from memagent_graph.rl.traces import End, Feedback, JSONLinesSink, fingerprint, join, load


def written(path, found):
    sink = JSONLinesSink(path)
    for record in found:
        sink.write(record)
    sink.close()
    return path


@pytest.mark.parametrize(("fields", "said"), [
    ({"prompt_ids": ()}, "prompt_ids is empty"),
    ({"completion_ids": (), "logprobs": ()}, "completion_ids is empty"),
    ({"prompt_ids": (1, -1)}, "token ids"), ({"completion_ids": (4, 5.0)}, "token ids"),
    ({"logprobs": (-0.5,)}, "1 log-probabilities for 2"),
    ({"logprobs": (-0.5, float("nan"))}, "finite"), ({"logprobs": (-0.5, float("-inf"))}, "finite"),
    ({"logprobs": (-0.5, 0.5)}, "at most 0"), ({"logprobs": (-0.5, None)}, "must be numbers"),
    ({"step": -1}, "must be at least 0"),
])  # fmt: skip
def test_a_conversation_that_cannot_be_one_is_refused(fields, said):
    with pytest.raises(TraceError, match=said) as caught:
        conversation(**fields)

    assert isinstance(caught.value, MemAgentError)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_no_finite_number_is_refused_by_the_name_of_its_rollout(reward):
    with pytest.raises(TraceError, match="'r7'"):
        Feedback("r7", reward)


def test_a_rollout_is_put_together_from_its_records():
    (rollout,) = join(records(updates=3, policy=4)).rollouts

    told = [(one.step, one.final) for one in rollout.conversations]
    assert told == [(0, False), (1, False), (2, False), (3, True)]
    assert (rollout.rollout, rollout.group, rollout.sample) == ("r", "g", "q")
    assert (rollout.answer, rollout.reward, rollout.policy) == ("forty", None, 4)
    assert (rollout.tokens, rollout.memory_tokens) == (8, 2)


@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_records_of_many_rollouts_may_come_in_any_order_and_from_any_file(rng, files):
    found = [record for n in range(6) for record in records(f"r{n}", updates=n % 3)]
    shuffled = rng.sample(found, len(found))

    joined = join(one for part in range(files) for one in shuffled[part::files])

    whole, mixed = ({one.rollout: one for one in each.rollouts} for each in (join(found), joined))
    assert not joined.skipped
    assert len(joined.rollouts) == len(mixed) == 6
    assert mixed == whole


def test_feedback_may_come_before_or_after_the_end_and_the_last_word_counts(tmp_path):
    files = {
        "a.jsonl": [*records("r1", reward=0.25), Feedback("r1", 0.5)],
        "b.jsonl": [Feedback("r1", 1.0), Feedback("r2", -1.0)],
        "c.jsonl": records("r2", reward=0.0),
    }

    loaded = load([written(tmp_path / name, found) for name, found in files.items()])

    assert {one.rollout: one.reward for one in loaded.rollouts} == {"r1": 1.0, "r2": -1.0}


def skipped(tmp_path, *lines):
    file = written(tmp_path / "a.jsonl", records("whole"))
    with file.open("ab") as out:
        for line in lines:
            out.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    loaded = load(file)
    assert [one.rollout for one in loaded.rollouts] == ["whole"]
    return dict(loaded.skipped)


def test_torn_lines_are_skipped_and_counted(tmp_path):
    torn = json.dumps(conversation("other").plain()).encode()[:50]

    assert skipped(tmp_path, b"\xff\xfe\n", b"{}}\n", torn) == {"torn record": 3}


def test_records_of_another_shape_are_skipped_and_counted_by_what_is_wrong(tmp_path):
    good = conversation("other").plain()
    changed = {"logprobs": None}, {"logprobs": [-1.0]}, {"prompt_ids": "123"}, {"rollout": 7}

    found = skipped(
        tmp_path,
        *([1, 2], {"kind": "novel"}, {"kind": ["conversation"]}),
        {key: value for key, value in good.items() if key != "logprobs"},
        *(good | change for change in changed),
        {"kind": "end", "rollout": "other"},
        {"kind": "feedback", "rollout": "whole", "reward": "high"},
    )

    wrong = {f"invalid {kind}": 1 for kind in ("end", "feedback")}
    assert found == {"record of an unknown kind": 3, "invalid conversation": 5} | wrong


def test_a_record_of_a_later_release_may_have_more_fields(tmp_path):
    good = records("other", updates=0)

    with written(tmp_path / "a.jsonl", []).open("w") as out:
        out.writelines(json.dumps(one.plain() | {"colour": "red"}) + "\n" for one in good)

    assert len(load(tmp_path / "a.jsonl").rollouts) == 1


APART = "rollout whose conversations do not fit together"
OTHER = {"step": 1, "final": True, "tokenizer": "u"}


@pytest.mark.parametrize(("found", "reason"), [
    (records()[:-1], "rollout without an end"),
    (records()[1:], "rollout with conversations missing"),
    (records()[-1:], "rollout with conversations missing"),
    ([Feedback("gone", 1.0)], "feedback on a rollout that is not there"),
    ([conversation(), conversation(step=1), End("r", 2, "a")], APART),
    ([conversation(), conversation(**OTHER), End("r", 2, "a")], APART),
])  # fmt: skip
def test_what_makes_no_whole_rollout_is_counted(found, reason):
    joined = join([*records("whole"), *found])

    assert ([one.rollout for one in joined.rollouts], joined.skipped) == (["whole"], {reason: 1})


def test_of_a_rollout_that_was_recorded_twice_the_later_counts_and_it_is_told():
    joined = join([*records(updates=4), *records(updates=1, policy=9)])

    (rollout,) = joined.rollouts
    assert [one.policy for one in rollout.conversations] == [9, 9]
    assert joined.skipped == {"conversation recorded twice": 2, "end recorded twice": 1}


def test_paths_without_traces_are_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("no traces")

    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(TraceError, match="no traces"):
            load(path)


def test_something_without_a_vocabulary_has_no_fingerprint():
    with pytest.raises(TraceError, match="NoneType"):
        fingerprint(None)


def test_a_file_gives_back_exactly_what_was_written(tmp_path):
    logprobs = tuple(-math.pi * 10.0**power for power in range(-20, 2))
    found = [
        *records("ä\ud800\n", reward=1 / 3, logprobs=logprobs, completion_ids=(2**31 - 1,) * 22),
        *records("r2", updates=0, sampling={"temperature": None, "top_k": 20, "top_p": 1.0}),
        Feedback("r2", -1e-300),
    ]

    loaded = load(written(tmp_path / "traces.jsonl", found))

    assert loaded == join(found)
    assert not loaded.skipped


def test_several_places_are_read_as_one(tmp_path):
    parts, folder = records("r1"), tmp_path / "more"
    folder.mkdir()
    first = written(tmp_path / "a.jsonl", parts[:2])
    written(folder / "b.jsonl", parts[2:3])
    written(folder / "c.jsonl", parts[3:])

    assert load([first, folder]) == join(parts)


WRITER = """
import sys
from rl.rollouts import records
from memagent_graph.rl.traces import JSONLinesSink
sink = JSONLinesSink(sys.argv[1])
for number in range(50):
    for record in records(f"{sys.argv[2]}-{number}", prompt_ids=tuple(range(20_000))):
        sink.write(record)
"""


@pytest.mark.slow
def test_several_processes_append_to_one_file_without_tearing_a_line(tmp_path):
    file = tmp_path / "a.jsonl"
    python = warm_python(*COMMAND_LINE)
    writers = [python.start([sys.executable, "-c", WRITER, file, name]) for name in range(3)]

    assert [writer.wait() for writer in writers] == [0, 0, 0]

    loaded = load(file)
    assert len(loaded.rollouts) == 150
    assert not loaded.skipped


def test_a_line_torn_by_a_kill_costs_no_other_record(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(json.dumps(conversation("torn").plain()).encode()[:40])

    loaded = load(written(file, records("r1")))

    assert [one.rollout for one in loaded.rollouts] == ["r1"]
    assert loaded.skipped == {"torn record": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk_is_an_error_not_a_loss():
    sink = JSONLinesSink("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        sink.write(Feedback("r1", 1.0))
    sink.close()
