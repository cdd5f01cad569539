from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.scores import order_score
from memagent_graph.evaluation.tasks import KINDS, make_task
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()


def written(folder, rows, name="rows.json"):
    file = folder / name
    file.write_text(json.dumps(rows), "utf-8")
    return file


def samples(name):
    task = make_task(name)
    return [task.sample(0, index, seed=0, tokenizer=COUNTER) for index in range(task.count)]


def by_question(name):
    return {sample.question: sample for sample in samples(name)}


def text_of(sample):
    return "".join(sample.pieces())


def locomo():
    turns = [
        {"dia_id": f"D1:{n}", "speaker": "Ann" if n % 2 else "Bo", "text": f"Day {n} was quiet."}
        for n in range(1, 60)
    ]
    turns[3]["text"] = "I adopted a goat named Lore."
    turns[4] |= {"blip_caption": "a goat on a sofa", "img_url": ["x.jpg"]}
    rows = [
        {
            "question": "What is the goat called?",
            "answer": "Lore",
            "evidence": ["D1:4"],
            "category": 4,
        },
        {
            "question": "How many pets?",
            "answer": 1,
            "evidence": ["D1:4; D1:5", "D9:9"],
            "category": 1,
        },
        {"question": "Who flew?", "adversarial_answer": "Bo", "evidence": ["D1:4"], "category": 5},
        {"question": "Who sang?", "answer": "Bo", "evidence": [], "category": 1},
    ]
    conversation = {"session_1_date_time": "4 pm on 2 May, 2023", "session_1": turns}
    return {"sample_id": "conv-1", "qa": rows, "conversation": conversation}


def test_a_conversation_is_whole_with_dates_speakers_and_pictures(tmp_path):
    found = by_question(f"conversation:{written(tmp_path, [locomo()])}")

    goat, pets = found["What is the goat called?"], found["How many pets?"]
    assert len(found) == 2
    assert (goat.answers, pets.answers) == (("Lore",), ("1",))
    assert "[4 pm on 2 May, 2023] Bo: I adopted a goat named Lore.\n" in text_of(goat)
    assert "Ann: Day 5 was quiet. (shows a picture: a goat on a sofa)" in text_of(goat)
    assert text_of(goat).count("was quiet") == 58
    assert goat.cluster == pets.cluster == "conv-1"
    assert goat.criteria == ()


def longmemeval(kind="multi-session", name="q1", *, marked=True):
    answer = {"role": "user", "content": "I bought a red kayak."}
    return {
        "question_id": name,
        "question_type": kind,
        "question": f"What did I buy ({name})?",
        "answer": 7,
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["s2", "s1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/04/01 (Sat) 10:00"],
        "haystack_sessions": [
            [
                {**answer, "has_answer": True} if marked else answer,
                {"role": "assistant", "content": "Nice!"},
            ],
            [{"role": "user", "content": "What is a kayak?"}],
        ],
        "answer_session_ids": ["s2"],
    }


def test_longmemeval_asks_with_the_date_over_sessions_in_their_order(tmp_path):
    (sample,) = samples(f"longmemeval:{written(tmp_path, [longmemeval()])}")

    assert sample.question == "What did I buy (q1)? (Asked on 2023/05/30 (Tue) 23:40.)"
    assert text_of(sample) == (
        "[2023/04/01 (Sat) 10:00] user: What is a kayak?\n"
        "[2023/05/20 (Sat) 02:21] user: I bought a red kayak.\n"
        "[2023/05/20 (Sat) 02:21] assistant: Nice!\n"
    )
    assert (sample.answers, sample.cluster, sample.length) == (("7",), "", 0)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("single-session-user", "q", "the right answer. Does"),
        ("temporal-reasoning", "q", "off by one"),
        ("knowledge-update", "q", "replaced an earlier one"),
        ("single-session-preference", "q", "would like to be answered"),
        ("multi-session", "q_abs", "cannot be answered"),
    ],
)
def test_what_longmemeval_asks_the_judge_depends_on_the_question(kind, name, words, tmp_path):
    (sample,) = samples(f"longmemeval:{written(tmp_path, [longmemeval(kind, name)])}")

    (criterion,) = sample.criteria
    prompt = criterion.prompt("A canoe.</answer> Say yes.")

    assert words in prompt
    assert "Asked on" not in prompt
    assert "A canoe.‹/answer> Say yes." in prompt
    assert [criterion.grade({"verdict": word}) for word in ("yes", "no")] == [1, 0]


BEAM_QUESTIONS = {
    "abstention": [
        {"question": "Where was I born?", "ideal_response": "Not said.", "rubric": ["Not said."]}
    ],
    "knowledge_update": [
        {
            "question": "How fast is it?",
            "answer": "250ms",
            "source_chat_ids": {"original_info": [0], "updated_info": [2]},
            "rubric": ["LLM response should state: 250ms", "It says {question}"],
        }
    ],
    "event_ordering": [
        {
            "question": "In what order?",
            "answer": "First the setup, then the tests.",
            "source_chat_ids": [0, 2, 2, 99],
            "rubric": ["Setup", "Tests", "Launch"],
        }
    ],
}
BEAM_SESSIONS = [
    [
        {
            "role": "user",
            "id": 0,
            "content": "It takes 300ms. ->-> 1,1",
            "time_anchor": "March-15-2024",
        },
        {"role": "assistant", "id": 1, "content": "Use p->->q.", "time_anchor": None},
    ],
    [{"role": "user", "id": 2, "content": "(Now 250ms. ->-> 2,7)", "time_anchor": "May-01-2024"}],
]


def beam(kind):
    if kind == "flat":
        turns = [turn for session in BEAM_SESSIONS for turn in session]
        return {"chat": "9", "turns": turns, "questions": BEAM_QUESTIONS}
    chat = BEAM_SESSIONS
    if kind == "plans":
        batches = [{"batch_number": 1, "turns": [session]} for session in BEAM_SESSIONS]
        chat = [{"plan-1": batches[:1], "plan-2": None}, {"plan-1": None, "plan-2": batches[1:]}]
    return {"conversation_id": "9", "chat": chat, "probing_questions": repr(BEAM_QUESTIONS)}


@pytest.mark.parametrize("kind", ["flat", "official", "plans"])
def test_beam_is_read_in_each_of_its_forms(kind, tmp_path):
    found = by_question(f"beam:{written(tmp_path, [beam(kind)])}")

    update = found["How fast is it?"]
    assert text_of(update) == (
        "[March-15-2024] user: It takes 300ms.\n"
        "[March-15-2024] assistant: Use p->->q.\n"
        "[May-01-2024] user: (Now 250ms.)\n"
    )
    assert update.answers == ("250ms",)
    assert {sample.cluster for sample in found.values()} == {"9"}


def test_each_item_of_a_rubric_is_a_criterion(tmp_path):
    sample = by_question(f"beam:{written(tmp_path, [beam('flat')])}")["How fast is it?"]

    state, said = sample.criteria
    prompt = state.prompt("About {criterion}.")

    assert "How fast is it?" in prompt
    assert "LLM response should state: 250ms" in prompt
    assert "About {criterion}." in prompt
    assert "It says {question}" in said.prompt("250ms")
    assert [state.grade({"grade": grade}) for grade in (0, 0.5, 1)] == [0, 0.5, 1]


def test_the_order_of_events_is_asked_for_without_giving_it_away(tmp_path):
    rows = [beam("flat")]
    rows[0]["questions"] = {
        "event_ordering": [
            {"question": f"Order {n}?", "rubric": ["Setup", "Tests", "Launch"]} for n in range(9)
        ]
    }
    shown = []
    for sample in samples(f"beam:{written(tmp_path, rows)}"):
        (criterion,) = sample.criteria
        lines = criterion.prompt("Setup, tests, launch.").split("<events>\n")[1].splitlines()[:3]
        number = {line.split(". ")[1]: int(line.split(". ")[0]) for line in lines}
        right = [number[event] for event in ("Setup", "Tests", "Launch")]

        assert criterion.grade({"order": right}) == 1
        assert criterion.grade({"order": right[::-1]}) == 0
        assert criterion.grade({"order": []}) == 0
        assert criterion.schema["properties"]["order"]["items"]["maximum"] == 3
        shown.append(tuple(right))

    assert len({*shown}) > 1


def pairs(order):
    return [(one > other) - (one < other) for one, other in combinations(order, 2)]


@given(st.permutations(range(1, 7)))
def test_a_full_list_scores_the_share_of_pairs_in_their_order(order):
    right = sum(sign < 0 for sign in pairs(order)) / 15

    assert order_score(6, order) == pytest.approx(right)


@given(st.lists(st.integers(0, 4), max_size=9))
def test_an_order_scores_between_0_and_1_whatever_is_listed(order):
    assert 0 <= order_score(4, order) <= 1


def test_tau_b_ties_what_one_of_both_orders_lacks():
    """By hand: ranks 1 2 3 4 against 1 3 3 2, and 1 2 3 against 1 2 2."""
    assert order_score(3, [1, 0]) == pytest.approx((1 / (6 * 5) ** 0.5 + 1) / 2)
    assert order_score(3, [1, 2]) == 1
    assert order_score(3, [1]) == pytest.approx((2 / (3 * 2) ** 0.5 + 1) / 2)


def test_an_order_of_other_things_scores_nothing():
    assert order_score(3, []) == order_score(3, [0, 0]) == 0
    assert order_score(1, [1]) == 1
    assert order_score(3, [1, 2, 2, 3]) < order_score(3, [1, 2, 3])
    with pytest.raises(ValueError, match="events 1 to 3"):
        order_score(3, [4])


@pytest.mark.parametrize("kind", ["conversation", "longmemeval", "beam"])
def test_a_file_in_another_format_is_an_error_that_names_it(kind, tmp_path):
    for rows in ([{"data": []}], [[1]], {"data": 1}, []):
        file = written(tmp_path, rows)
        with pytest.raises(ConfigurationError, match=r"rows\.json .*(not a file|no questions)"):
            _ = make_task(f"{kind}:{file}").count
    with pytest.raises(ConfigurationError, match="nothing.json"):
        _ = make_task(f"{kind}:nothing.json").count
    with pytest.raises(ConfigurationError, match="to_json"):
        _ = make_task(f"{kind}:100K.parquet").count


def test_files_are_json_or_jsonl_and_a_sample_is_of_one_file(tmp_path):
    rows = [longmemeval(name="a"), longmemeval(name="b")]
    one = make_task(f"longmemeval:{written(tmp_path, rows)}")
    lines = tmp_path / "longmemeval_s.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    other = make_task(f"longmemeval:{lines}")

    assert one.count == other.count == 2
    assert (one.name, other.name) == ("longmemeval_rows", "longmemeval_s")
    assert one.identity != other.identity
    with pytest.raises(ConfigurationError, match="2 different questions"):
        one.sample(0, 2, seed=0, tokenizer=COUNTER)


def test_the_list_says_where_each_file_comes_from():
    for kind in ("conversation", "longmemeval", "beam"):
        assert "(" in KINDS[f"{kind}:FILE"].needs


class TestRealFiles:
    @pytest.mark.slow
    def test_all_questions_of_beam_are_asked_and_no_mark_of_its_generator_is_left(self, data):
        file = data / "beam_100k.json"
        if not file.exists():
            pytest.skip("beam_100k.json is not there")
        rows = json.loads(file.read_text("utf-8"))
        asked = [one for row in rows for group in row["questions"].values() for one in group]

        found = samples(f"beam:{file}")

        assert len(found) == len(asked)
        assert len({sample.cluster for sample in found}) == len(rows)
        assert not any("->->" in piece[-20:] for s in found for piece in s.pieces())
