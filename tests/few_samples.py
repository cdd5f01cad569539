"""lm-evaluation-harness without minutes of work that no test looks at: FEW_SAMPLES ARGUMENTS.

It reads the settings of 13,000 tasks, sorts six million keys of needles, and makes 500 samples of
each task of RULER whatever its limit is. Here, it knows the tasks of RULER and of its
`include_path`, and makes the first samples, with keys of fewer words.
"""

from pathlib import Path

import tqdm
import wonderwords

COUNT = 2


class FirstSamples(tqdm.tqdm):
    """What tasks of RULER count their samples with."""

    def __init__(self, iterable=None, *arguments, **options):
        samples = range(COUNT) if iterable == range(500) else iterable
        super().__init__(samples, *arguments, **options)


class FewWords(wonderwords.RandomWord):
    """What needles take their keys from."""

    def __init__(self):
        super().__init__()
        self._categories = {kind: words[:1000] for kind, words in self._categories.items()}


def few_tasks(*, include_path=None, **options):
    from lm_eval.tasks import manager

    paths = [Path(manager.__file__).parent / "ruler", *filter(None, [include_path])]
    return manager.TaskManager(include_path=paths, include_defaults=False, **options)


if __name__ == "__main__":
    import runpy

    from lm_eval import tasks

    tqdm.tqdm, wonderwords.RandomWord, tasks.TaskManager = FirstSamples, FewWords, few_tasks
    runpy.run_module("memagent_lm_eval", run_name="__main__", alter_sys=True)
