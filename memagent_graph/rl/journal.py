"""Metrics, checkpoints and curves of a training run, in one folder."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memagent_graph.rl.trainer import MultiConversationGRPOTrainer

_STATE = "loop.json"
_KEPT = 2


class Journal:
    """A folder with `metrics.jsonl`, `checkpoints/` and `curves.png`.

    Args:
        folder: the folder, created if missing; all processes must reach it.
        main: whether this is the process that writes, of several.
    """

    def __init__(self, folder: Path, *, main: bool = True) -> None:
        self.folder = folder
        self._main = main
        self._checkpoints = folder / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._metrics = folder / "metrics.jsonl"

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics."""
        if not self._main:
            return
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """Return all lines, except a truncated one that a killed process left."""
        try:
            lines = self._metrics.read_text("utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def save(self, trainer: MultiConversationGRPOTrainer, state: dict[str, int]) -> None:
        """Save a checkpoint of trainer and loop; the latest two are kept."""
        name = f"{state['iteration']:06d}"
        unfinished, folder = self._checkpoints / f".{name}", self._checkpoints / name
        if self._main:
            shutil.rmtree(unfinished, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        trainer.save(unfinished)
        trainer.accelerator.wait_for_everyone()
        if not self._main:
            return
        (unfinished / _STATE).write_text(json.dumps(state), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        for old in self._saved()[:-_KEPT]:
            shutil.rmtree(old)

    def restore(self, trainer: MultiConversationGRPOTrainer) -> dict[str, int] | None:
        """Restore the latest checkpoint, and return the loop's state; None if there is none.

        Metrics after the checkpoint are removed.

        Raises:
            ConfigurationError: The checkpoint belongs to another model.
        """
        saved = self._saved()
        if not saved:
            self.clear()
            return None
        trainer.restore(saved[-1])
        state: dict[str, int] = json.loads((saved[-1] / _STATE).read_text("utf-8"))
        if self._main:
            kept = [line for line in self.metrics() if line["iteration"] <= state["iteration"]]
            self._metrics.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        return state

    def clear(self) -> None:
        """Delete the metrics of an earlier run."""
        if self._main:
            self._metrics.unlink(missing_ok=True)

    def draw(self) -> Path | None:
        """Plot reward, divergence, entropy and lengths.

        Returns:
            Path of the picture; None without matplotlib, or if another process plots.
        """
        if not self._main:
            return None
        lines = self.metrics()
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return None
        figure = Figure(figsize=(10, 6), layout="constrained")
        for place, (title, names) in enumerate(_CURVES.items(), 1):
            axes = figure.add_subplot(2, 2, place)
            for name in names:
                points = [(line["iteration"], line[name]) for line in lines if name in line]
                if points:
                    axes.plot(*zip(*points, strict=True), label=name.replace("_", " "))
            axes.set_title(title)
            axes.set_xlabel("iteration")
            axes.legend(frameon=False)
        path = self.folder / "curves.png"
        figure.savefig(path, dpi=120)
        return path

    def _saved(self) -> list[Path]:
        found = self._checkpoints.iterdir()
        return sorted(path for path in found if not path.name.startswith("."))


_CURVES = {
    "Reward": ("reward", "held_out_reward"),
    "Divergence from the reference": ("kl",),
    "Entropy and clipping": ("entropy", "clip_fraction"),
    "Tokens of a reply": ("completion_tokens", "memory_tokens"),
}
