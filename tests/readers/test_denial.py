"""Whether a model's answer says that there is none."""

import json

import pytest

from memagent_graph.readers.replies import says_not_found


@pytest.mark.parametrize(
    "answer",
    [
        "The notes do not hold the answer.",
        "The notes don't say where the observatory is.",
        "Not mentioned",
        "Unknown",
        "No answer found",
        "This cannot be determined from the notes.",
        "I don't know.",
        "I cannot answer this.",
        "N/A",
        "笔记中没有提到答案。",
        "文中未提及该天文台的位置。",
        "Der Text sagt nicht, wo die Sternwarte steht.",
        "Das wird im Text nicht erwähnt.",
        "Le texte ne mentionne pas l'observatoire.",
        "La date n'est pas précisée.",
        "El texto no menciona el observatorio.",
        "No se menciona en las notas.",
        "O texto não informa a data.",
        "Não há informação sobre isso.",
        "Non è specificato.",
        "Неизвестно.",
        "De notities noemen geen datum.",
        "W tekście nie podano daty.",
        "Metinde belirtilmemiş.",
        "لم يذكر النص ذلك.",
        "पाठ में इसका उल्लेख नहीं है।",
        "本文には記載がありません。",
        "본문에 언급되어 있지 않습니다.",
        "",
    ],
)
def test_an_answer_that_denies_is_known(answer):
    assert says_not_found(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Husum",
        "Nobody knows him: Kaspar Hauser",
        "It is not in Husum but in Tönning.",
        "The Unknown Soldier",
        "No. 7",
        "胡苏姆",
        "The contract has no end date.",
        "Der Vertrag ist nicht unterschrieben.",
        "Nein, er wohnt nicht in Husum.",
        "Il n'habite pas à Lyon.",
        "El contrato no tiene fecha de fin.",
        "Non abita a Roma.",
        "Он не живёт в Москве.",
        "契約には期限がない。",
        "그는 서울에 살지 않는다.",
    ],
)
def test_an_answer_that_tells_something_is_not(answer):
    assert not says_not_found(answer)


def test_no_answer_of_the_files_is_taken_for_a_denial(data):
    rows = [json.loads(line) for line in (data / "nq_open.jsonl").read_text("utf-8").splitlines()]
    answers = [answer for row in rows for answer in row["answers"]]
    for name in (path.name for path in sorted(data.glob("xquad.*.json"))):
        articles = json.loads((data / name).read_text("utf-8"))["data"]
        answers += [
            answer["text"]
            for article in articles
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
            for answer in asked["answers"]
        ]

    wrong = [answer for answer in answers if says_not_found(answer)]

    assert len(wrong) <= len(answers) // 500, wrong
