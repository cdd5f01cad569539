import pytest

from memagent_graph.errors import ConfigurationError, SourceNotFoundError
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()
TOPICS = ("harbour", "mill", "bakery", "library", "garden", "brewery", "school", "chapel")


def plain(number):
    """A sentence without a name or number, in words that no other has."""
    letters = "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}")
    return f"The {letters}ish workers of the {TOPICS[number % 8]} talked about bread and weather."


def text_with(*placed, sentences=400):
    lines = [plain(number) for number in range(sentences)]
    for place, sentence in placed:
        lines[place] = sentence
    return "\n\n".join(lines)


LEASE = "After the long dispute over the quay, the lease was signed by Berta Kestrel of all people."


def answers(path, length=2_000):
    task = make_task(f"masked:{path}")
    samples = (task.sample(length, index, seed=0, tokenizer=COUNTER) for index in range(task.count))
    return {sample.answers[0]: sample for sample in samples}


def test_a_name_is_asked_for_with_its_sentence_and_stands_in_the_document(tmp_path):
    (tmp_path / "book.txt").write_text(text_with((150, LEASE)))

    (sample,) = answers(tmp_path / "book.txt").values()

    assert sample.answers == ("Berta Kestrel",)
    assert sample.question.endswith("the lease was signed by ____ of all people.")
    source = sample.open()
    text = source.read(0, source.length)
    assert LEASE in text
    assert text in (tmp_path / "book.txt").read_text()


@pytest.mark.parametrize("length", [200, 1_000, 5_000])
def test_a_document_has_the_length_asked_for_wherever_the_sentence_stands(tmp_path, length):
    for place in (0, 200, 399):
        (tmp_path / "book.txt").write_text(text_with((place, LEASE)))
        (sample,) = answers(tmp_path / "book.txt", length).values()
        source = sample.open()
        tokens = COUNTER.count(source.read(0, source.length))
        assert length - max(length // 100, 30) <= tokens <= length + 3


@pytest.mark.parametrize("placed", [
    [(150, LEASE), (140, "Berta sold fish on the other side of the old town for years.")],
    [(150, LEASE), (152, "Nobody knew where old Mr. Kestrel had gone on that winter day.")],
    [(place, f"{LEASE[:-1]}, and {plain(place).lower()}") for place in (0, 100, 200, 300)],
    [(150, LEASE), (300, LEASE.replace("Berta Kestrel", "Ulrich Nomad"))],
    [(150, "It was the lease of Berta.")],
], ids=["first name near", "last name near", "common", "two alike", "short"])  # fmt: skip
def test_what_can_be_guessed_or_meant_twice_is_not_asked(tmp_path, placed):
    (tmp_path / "book.txt").write_text(text_with(*placed))

    with pytest.raises(ConfigurationError, match="Name more documents"):
        answers(tmp_path / "book.txt")


@pytest.mark.parametrize(
    "detail", ["14 March 2031", "Bank of Lindau", "1,250", "Berta", "Maria Sol Ortega"]
)
def test_names_numbers_and_dates_are_masked_whole(tmp_path, detail):
    sentence = LEASE.replace("Berta Kestrel", detail)
    (tmp_path / "book.txt").write_text(text_with((150, sentence)))

    assert [*answers(tmp_path / "book.txt")] == [detail]


def test_the_files_of_a_folder_are_one_text_whose_headings_are_not_asked_for(tmp_path):
    other = LEASE.replace("Berta Kestrel", "Ulrich Nomad").replace("quay", "barn and the sheep")
    (tmp_path / "Annual Report 2031.txt").write_text(text_with((100, LEASE), sentences=200))
    (tmp_path / "b.txt").write_text(text_with((100, other), sentences=200))

    assert answers(tmp_path).keys() == {"Berta Kestrel", "Ulrich Nomad"}


def test_too_little_text_is_said_with_its_length(tmp_path):
    (tmp_path / "book.txt").write_text(text_with((150, LEASE)))

    with pytest.raises(ConfigurationError, match=r"book.txt has about [5-9],\d{3} tokens"):
        answers(tmp_path / "book.txt", 50_000)
    with pytest.raises(SourceNotFoundError):
        answers(tmp_path / "gone")
