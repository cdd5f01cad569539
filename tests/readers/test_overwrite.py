"""What in a reply is notes, what speaks against overwriting the old ones, and what is no answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.readers import replies
from memagent_graph.templates import NO_MEMORY

OLD = (
    "2026-03-01: Lives in Husum.\n"
    "2026-03-01: Allergic to peanuts.\n"
    "2026-03-02: Sister Edda breeds goats."
)
READ = "2026-03-03 user: Thanks a lot! By the way, I sold the boat."
TAGS = ("notes", "conversation", "task", "question", "section")
ALPHABET = st.sampled_from("abc xyz\n.:-`#<>/()*ß中1")


def check(reply, before=OLD, read=READ, **more):
    return replies.check_overwrite(reply, before, read, tags=TAGS, **more)


@pytest.mark.parametrize(
    "reply",
    [
        OLD,
        f"```markdown\n{OLD}\n```",
        f"<notes>\n{OLD}\n</notes>",
        f"</notes>\n<notes>{OLD}</notes>",
        f"<question>\nWho is it?\n</question>\n\n<notes>\n{OLD}\n</notes>",
        f"~~~\n{OLD}\n~~~",
        f"```\n{OLD}",
        f"{OLD}\n<notes>\n{NO_MEMORY}\n</notes>\n\n<notes>\n{NO_MEMORY}\n</notes>",
    ],
)
def test_what_models_put_round_notes_is_taken_off(reply):
    assert check(reply, question="Who is it?") == (OLD, False, None)


@pytest.mark.parametrize(
    "notes",
    [
        "- Prefers:\n```python\nx = 1\nx = 1\n```",
        "Assistant: recommended Lisbon.",
        '{"theme": "dark", "notes": "short"}',
        "<b>Never</b>",
        "Says that \"I'm sorry, but I can't assist\" is what her bot replies.",
        "Prefers this config:\n```\na: 1\na: 1\na: 1\na: 1\n```\nLives in Husum.",
        "Wants answers between <b> and </b>.",
        "2026-03-05: Took ibuprofen.\n2026-03-09: Took ibuprofen.\n2026-03-12: Took ibuprofen.",
        "Nothing to Remember is her favourite song.",
        "Sorry seems to be the hardest word, she says.",
    ],
)
def test_notes_that_merely_look_so_stay_as_they_are(notes):
    assert check(notes, before="", read=notes) == (notes, False, None)


NOTHING_NEW = (
    "unchanged | (unchanged) | **Unchanged.** | No new information to add. | (No changes) | "
    "There is no new information in this conversation. | Nothing new. | "
    "The conversation does not contain any new facts about the user. | "
    "The section adds nothing to the notes."
)


@pytest.mark.parametrize("reply", NOTHING_NEW.split(" | "))
def test_a_reply_that_only_says_that_nothing_is_new_leaves_the_notes_as_they_are(reply):
    assert check(reply) == ("", True, None)
    assert replies.says_nothing_new(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "I'm sorry, but I can't assist with that request.",
        "I’m sorry, I cannot help with this.",
        "As an AI language model, I can't keep notes about people.",
        "Unfortunately, I am unable to process this section.",
    ],
)
def test_a_refusal_is_a_fault(reply):
    assert check(reply).fault == "refusal"
    assert check(reply, before="").fault == "refusal"
    assert replies.is_refusal(reply)


@pytest.mark.parametrize(
    "reply", [NO_MEMORY, "N/A", "...", "{}", "```\n```", f"<notes>\n{NO_MEMORY}\n</notes>\n" * 9]
)
def test_words_of_the_prompt_are_a_fault_and_with_nothing_noted_yet_are_nothing(reply):
    assert check(reply).fault == "placeholder"
    assert check(reply, before="") == ("", True, None)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("The weather is lovely in Paris today and croissants cost little.", "foreign"),
        ("2026-03-03: Sold the boat.", "loss"),
        ("2026-03-01: Lives in Husum.", "loss"),
        (f"{OLD}\n2026-03-03: Sold the boat.", None),
        ("2026-03-01: Lives in Husum, allergic to peanuts; sister Edda breeds goats.", None),
        ("2026-03-01: Lives in Husum. Sister Edda breeds goats.\n2026-03-03: Sold the boat.", None),
    ],
)
def test_to_lose_most_of_the_old_notes_is_a_fault_and_other_words_are_none(reply, fault):
    assert check(reply).fault == fault


def test_what_bears_on_the_question_may_not_go_though_half_of_the_notes_stay():
    before = "The keeper is Odo Brandt.\nRain fell on the island."
    after = "Rain fell on the island, and the sea was calm."
    asked = {"read": "The sea was calm."}

    assert check(after, before, **asked, question="Who is the keeper?").fault == "loss"
    assert check(after, before, **asked, question="How was the weather?").fault is None


@pytest.mark.parametrize("reply", ["Who is the keeper?", "**Question:** who is the keeper?\n"])
def test_the_question_is_no_note(reply):
    assert check(reply, question="Who is the keeper?").fault == "placeholder"
    said = f"{reply}\nThe keeper is Odo Brandt."
    assert check(said, "", said, question="Who is the keeper?").text == "The keeper is Odo Brandt."


def test_a_reply_that_was_cut_off_may_lose_no_statement():
    reply = "2026-03-01: Lives in Husum.\n2026-03-02: Sister Edda breeds goats."

    assert check(reply).fault is None
    assert check(reply, unfinished=True).fault == "loss"


@pytest.mark.parametrize(
    "reply",
    [
        "Заметки без изменений.",
        "2026年3月3日：用户只是表示感谢，没有新信息。",
        "मुझे खेद है, मैं इसमें मदद नहीं कर सकता।",
        "الملاحظات لم تتغير.",
    ],
)
def test_a_few_words_in_another_script_are_no_translation_of_the_notes(reply):
    assert check(reply).fault == "loss"
    assert replies.find_lost_statements("2026-03-01: 她住在胡苏姆。", "The user expressed thanks.")


@pytest.mark.parametrize(
    "reply",
    [
        "I won't be able to assist.",
        "I'm just an AI and can't remember things.",
        "There isn't any new information in this message.",
        "The user only expressed gratitude.",
    ],
)
def test_letters_of_a_contraction_and_who_speaks_are_no_news(reply):
    read = "[2026-11-26T23:22+00:00] user: Don't bother!\n"

    assert not replies.adds_anything(reply, OLD, read)
    assert replies.adds_anything("The user doesn't want to be bothered.", OLD, read)


def test_a_loop_is_said_once():
    assert replies.without_loops("") == ""
    assert replies.without_loops("The boat is sold.\n" * 40) == "The boat is sold."
    sold = "The boat is sold, and"
    assert replies.without_loops("It rains. " + f"{sold} " * 9) == f"It rains. {sold}"
    assert replies.without_loops("a\nb\n" * 9 + "c") == "a\nb\nc"
    assert replies.without_loops("ha ha ha ha") == "ha ha ha ha"
    assert replies.without_loops("1 " * 2000) == "1 1"
    assert len(replies.without_loops("| 1 |\n" * 400)) < 20


@pytest.mark.parametrize(
    "notes",
    [
        "Phone: 777777777777777777777777777",
        "Scores: 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
        "| A | B |\n| 1 | 0 |\n| 1 | 0 |\n| 1 | 0 |\n| 1 | 0 |",
        "~~~\na\na\na\n~~~\nEnd",
        "~~~\n```\na\na\na\n```\nb\nb\nb\n~~~\nEnd",
        "```\n~~~\na\na\na\n```\nEnd",
    ],
)
def test_figures_and_code_that_repeat_themselves_are_no_loop(notes):
    assert replies.without_loops(notes) == notes


@given(st.text(ALPHABET, max_size=200), st.text(ALPHABET, max_size=200))
def test_the_check_takes_any_text_and_never_adds_to_it(reply, before):
    found = check(reply, before)

    assert len(found.text) <= len(reply)
    assert set(found.text) <= set(reply)
    assert not (found.unchanged and found.text)


@given(st.lists(st.text("abcdefg ", min_size=3, max_size=20), min_size=1, max_size=6))
def test_a_line_over_and_over_never_stays_so(lines):
    loop = "\n".join(lines) + "\n"

    assert len(replies.without_loops(loop * 30)) <= 3 * len(loop)


DENIALS = (
    "The notes do not hold the answer. | The notes don't say where the observatory is. | "
    "Not mentioned | Unknown | No answer found | This cannot be determined from the notes. | "
    "I don't know. | I cannot answer this. | 笔记中没有提到答案。 | 文中未提及该天文台的位置。 | "
    "N/A | Der Text sagt nicht, wo die Sternwarte steht. | Das wird im Text nicht erwähnt. | "
    "Le texte ne mentionne pas l'observatoire. | La date n'est pas précisée. | "
    "El texto no menciona el observatorio. | No se menciona en las notas. | "
    "O texto não informa a data. | Não há informação sobre isso. | Non è specificato. | "
    "Неизвестно. | De notities noemen geen datum. | W tekście nie podano daty. | "
    "Metinde belirtilmemiş. | لم يذكر النص ذلك. | पाठ में इसका उल्लेख नहीं है। | "
    "本文には記載がありません。 | 본문에 언급되어 있지 않습니다."
)
ANSWERS = (
    "Husum | Nobody knows him: Kaspar Hauser | It is not in Husum but in Tönning. | "
    "The Unknown Soldier | No. 7 | 胡苏姆 | The contract has no end date. | "
    "Der Vertrag ist nicht unterschrieben. | Nein, er wohnt nicht in Husum. | "
    "Il n'habite pas à Lyon. | El contrato no tiene fecha de fin. | Non abita a Roma. | "
    "Он не живёт в Москве. | 契約には期限がない。 | 그는 서울에 살지 않는다."
)


@pytest.mark.parametrize("answer", [*DENIALS.split(" | "), ""])
def test_an_answer_that_denies_is_known(answer):
    assert replies.says_not_found(answer)


@pytest.mark.parametrize("answer", ANSWERS.split(" | "))
def test_an_answer_that_tells_something_is_not(answer):
    assert not replies.says_not_found(answer)


def test_no_answer_of_the_files_is_taken_for_a_denial(data):
    rows = [json.loads(line) for line in (data / "nq_open.jsonl").read_text("utf-8").splitlines()]
    answers = [answer for row in rows for answer in row["answers"]]
    for path in sorted(data.glob("xquad.*.json")):
        articles = json.loads(path.read_text("utf-8"))["data"]
        paragraphs = [one for article in articles for one in article["paragraphs"]]
        asked = [one for paragraph in paragraphs for one in paragraph["qas"]]
        answers += [answer["text"] for one in asked for answer in one["answers"]]

    wrong = [answer for answer in answers if replies.says_not_found(answer)]

    assert len(wrong) <= len(answers) // 500, wrong
