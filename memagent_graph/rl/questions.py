"""Questions for training and for evaluation, split by text before they are numbered."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import draw
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.evaluation.tasks.questions import same
from memagent_graph.text.files import open_source
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from memagent_graph.evaluation.samples import Sample, Task
    from memagent_graph.rl.settings import TrainingSettings
    from memagent_graph.text.tokens import TokenizerLike

    Make: TypeAlias = Callable[[int], Sample]

_SHARE = 5
"""Inverse of the largest share of a file's different questions that is held out."""
_ATTEMPTS, _STRIDE = 100, 1_000_003
"""Most tries, and their distance, to replace a training question that is held out."""


class Questions:
    """Training questions by number, and held-out questions for evaluation.

    `training` has a function for each task, which makes its question of a number counted from 0;
    tasks are taken in turn.
    """

    def __init__(self, held_out: Sequence[Callable[[], Sample]], training: Sequence[Make]) -> None:
        self._held_out = held_out
        self._training = training

    @cached_property
    def held_out(self) -> list[Sample]:
        """The questions for evaluation."""
        return [make() for make in self._held_out]

    def make_training(self, number: int) -> Sample:
        """Return the training question of a number, counted from 0; its id contains the number."""
        place, task = divmod(number, len(self._training))
        sample = self._training[task](place)
        return replace(sample, id=f"{sample.id}@{number}")


def task_questions(settings: TrainingSettings, tokenizer: TokenizerLike) -> Questions:
    """Return the questions of `settings.tasks`, with the length and seed of the settings."""
    if not settings.tasks:
        raise ConfigurationError("Name what to train on: tasks: [qa:FILE], or masked:FOLDER.")
    essays = open_source(settings.essays) if settings.essays else None
    tasks = [make_task(name, essays) for name in settings.tasks]
    counter = load_tokenizer(tokenizer)
    seed = settings.seed
    makers = [partial(task.sample, settings.length, seed=seed, tokenizer=counter) for task in tasks]
    return split(tasks, makers, held_out=settings.held_out, seed=seed)


def split(tasks: Sequence[Task], makers: Sequence[Make], *, held_out: int, seed: int) -> Questions:
    """Split tasks so that no training question has the text of a held-out one, of any task.

    A file holds out at most a fifth of its questions; the others are repeated in another order once
    all have been asked.
    """
    kept: set[str] = set()
    chosen: list[Callable[[], Sample]] = []
    texts = [_texts(task, seed) for task in tasks]
    for place, (own, maker) in enumerate(zip(texts, makers, strict=True)):
        first = _first_of_each(own, len(range(place, held_out, len(tasks))), kept)
        kept |= {own[index] for index in first}
        chosen += [partial(maker, index) for index in first]
    training = []
    for task, own, maker in zip(tasks, texts, makers, strict=True):
        free = [index for index, text in enumerate(own) if text not in kept]
        if not free:
            message = (
                f"{task.name} has no question left to train on: {len(kept)} are held out. Lower "
                "held_out, or train on another file."
            )
            raise ConfigurationError(message)
        training.append(_repeat(maker, free, seed))
    return Questions(chosen, training)


def number_questions(make: Make, held_out: int) -> Questions:
    """Return the questions that a function makes; the first `held_out` are for evaluation only."""
    kept = {_key(make(index)) for index in range(held_out)}

    def make_one(number: int) -> Sample:
        for attempt in range(_ATTEMPTS):
            sample = make(held_out + number + attempt * _STRIDE)
            if _key(sample) not in kept:
                return sample
        message = (
            f"All questions of {_ATTEMPTS} draws are held out. Lower held_out ({held_out}), or "
            "give more questions."
        )
        raise ConfigurationError(message)

    return Questions([partial(make, index) for index in range(held_out)], [make_one])


def _repeat(make: Make, free: Sequence[int], seed: int) -> Make:
    """Make samples of these indexes, again and again in another order."""

    @lru_cache(maxsize=2)
    def order(epoch: int) -> list[int]:
        return random.Random(f"{seed} {epoch}").sample(free, len(free))  # noqa: S311 - no secret

    def make_one(number: int) -> Sample:
        epoch, place = divmod(number, len(free))
        return make(order(epoch)[place])

    return make_one


def _texts(task: Task, seed: int) -> list[str]:
    """The task's questions by index, in one spelling."""
    texts = task.texts or ()
    places = (draw(task.name, len(texts), index, seed) for index in range(len(texts)))
    return [same(texts[place]) for place in places]


def _first_of_each(texts: Sequence[str], wanted: int, kept: AbstractSet[str]) -> list[int]:
    """Indexes of the first different texts that are not kept yet, within the file's share."""
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    room = max(1, len(first) // _SHARE) - len(kept & first.keys())
    return [place for text, place in first.items() if text not in kept][: min(wanted, max(0, room))]


def _key(sample: Sample) -> str:
    """The key of a sample in the split: question and answers, since tasks repeat questions."""
    return same(" ".join((sample.question, *sample.answers)))
