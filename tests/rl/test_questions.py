import pytest
from paragraphs import hotpot, squad

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.questions import same
from memagent_graph.evaluation.samples import Sample, Task, draw
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.rl.grpo import TrainingSettings
from memagent_graph.rl.training import number_questions, split, task_questions


class Listed(Task):
    identity = "listed"
    texts = ()

    def __init__(self, texts, name="listed"):
        self.texts, self.name = texts, name

    def sample(self, length, index, *, seed=0, tokenizer=None):
        text = self.texts[draw(self.name, self.count, index, seed)]
        return asked(text, f"{self.name}/{index}")


def asked(text, name="q", answer="it"):
    return Sample(name, "t", 1, text, (answer,), "any", lambda: iter(()))


def parted(*tasks, held_out=64, seed=0):
    makers = [lambda index, task=task: task.sample(1, index, seed=seed) for task in tasks]
    return split(tasks, makers, held_out=held_out, seed=seed)


@pytest.mark.parametrize("count", [65, 1_190, 7_405])
def test_of_10000_training_questions_none_is_held_out(count):
    questions = parted(Listed([f"Who is number {n}?" for n in range(count)]))
    trained = [questions.make_training(number) for number in range(10_000)]

    held_out = {sample.question for sample in questions.held_out}
    asked = {sample.question for sample in trained}
    assert len(held_out) == min(64, count // 5)
    assert held_out.isdisjoint(asked)
    assert (len(asked), len({sample.id for sample in trained})) == (count - len(held_out), 10_000)


def test_an_epoch_asks_each_question_once_and_the_next_in_another_order():
    questions = parted(Listed([f"Who is number {n}?" for n in range(20)]), held_out=4)
    first, second = (
        [questions.make_training(16 * epoch + n).question for n in range(16)] for epoch in range(2)
    )
    assert (sorted(first), len(set(first))) == (sorted(second), 16)
    assert first != second


def test_the_same_question_in_another_file_or_spelling_is_held_out_too():
    texts = [f"Who is number {n}?" for n in range(60)]
    one, other = Listed(texts, "one"), Listed([f"  who is\nNumber {n}?" for n in range(60)], "two")
    questions = parted(one, other, held_out=10)

    held_out = {same(sample.question) for sample in questions.held_out}
    trained = {same(questions.make_training(number).question) for number in range(1_000)}
    assert held_out.isdisjoint(trained)
    assert held_out | trained == set(map(same, texts))


@pytest.mark.parametrize("texts", [["Who?"], ["Who?", "who? "]])
def test_a_file_with_nothing_left_to_train_on_is_an_error(texts):
    with pytest.raises(ConfigurationError, match="no question left to train on"):
        parted(Listed(texts))


def test_made_up_questions_are_split_by_what_they_ask_as_well():
    def make(index):
        return asked(f"Who is number {index % 7}?", answer=str(index % 7))

    questions = number_questions(make, 3)
    assert {sample.question[-2] for sample in questions.held_out} == {"0", "1", "2"}
    assert {questions.make_training(n).question[-2] for n in range(300)} == {"3", "4", "5", "6"}
    with pytest.raises(ConfigurationError, match="Lower held_out"):
        number_questions(make, 7).make_training(0)


@pytest.mark.parametrize("write", [hotpot, squad])
def test_files_are_split_before_their_questions_are_numbered(write, tmp_path):
    name = f"qa:{write(tmp_path, 20)}"
    settings = TrainingSettings(model="m", out=tmp_path, tasks=(name, name), length=200)

    questions = task_questions(settings, None)

    held_out = {sample.question for sample in questions.held_out}
    trained = {questions.make_training(number).question for number in range(80)}
    assert len(held_out) == 4
    assert held_out.isdisjoint(trained)
    assert held_out | trained == {question.text for question in make_task(name).questions}
