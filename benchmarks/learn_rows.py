"""Rows of measurements that are kept as they come, so that a run that was stopped goes on."""

from __future__ import annotations

import gc
import json
import logging
import shutil
from contextlib import suppress
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils.logging import disable_progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Row = dict[str, Any]


class Rows:
    """The rows of one seed in a file that several seeds may share.

    Args:
        path: of the file, a row a line.
        seed: that is a part of each row.
    """

    def __init__(self, path: Path, *, seed: int) -> None:
        self._path, self._seed = path, seed

    def about(self, about: Row) -> list[Row]:
        """The rows that say this."""
        return [
            row
            for row in read_rows(self._path)
            if row["seed"] == self._seed and about.items() <= row.items()
        ]

    def once(self, about: Row, measure: Callable[[], Row]) -> None:
        """Add a row of what is measured, unless there is one about that."""
        if self.about(about):
            return
        row = {"seed": self._seed, **about, **measure()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row) + "\n")  # the last line may be torn
        told = {name: value for name, value in row.items() if not isinstance(value, list)}
        told |= {f"mean {k}": sum(v) / len(v) for k, v in row.items() if isinstance(v, list)}
        print(told, flush=True)


def read_rows(path: Path) -> list[Row]:
    """All rows; what a killed process left torn is left out."""
    rows = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def make_anew(folder: Path, make: Callable[[Path], None]) -> Row:
    """Empty a folder and make a model there; the seconds that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started, spent = perf_counter(), process_time()
    make(folder)
    return {"seconds": perf_counter() - started, "processor": process_time() - spent}


def tell(line: Mapping[str, float]) -> None:
    """One line for every evaluation."""
    if "held_out_reward" in line:
        print(f"  iteration {line['iteration']}: {line['held_out_reward']:.3f}", flush=True)


def prepare(threads: int) -> None:
    """Make a process ready to train and to read."""
    torch.set_num_threads(threads)
    # Looking for garbage in all that is imported, and often, takes a quarter of the time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    # A model this small is loaded at once, and its tied weights are meant to be saved once.
    disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
