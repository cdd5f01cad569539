"""`memagent train`: reinforcement learning of the reader."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.options import parse_fields
from memagent_graph.cli.terminal import report_errors
from memagent_graph.errors import install_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXAMPLES = """Train a model to read, by reinforcement learning.

RUN is a YAML file with the fields of `memagent_graph.rl.TrainingSettings`;
`--set FIELD=VALUE` overrides one, or gives all of them without a file.

Examples:

\b
  memagent train run.yaml
  memagent train run.yaml --set learning_rate=3e-6 --set out=second
  memagent train --set model=MODEL --set engine=vllm --set out=first
  memagent train --set tasks='[masked:texts/]' --set model=NAME --set out=ours
  memagent train run.yaml --set traces='[production.jsonl]'

`masked:contracts/` makes the questions itself, without labels: a sentence of the documents with a
name, number or date masked.

A run that was stopped continues where it was when the same command is given again. OUT gets
`metrics.jsonl`, checkpoints, and the trained model in `model/`. On several GPUs:
`accelerate launch -m memagent_graph train run.yaml`.

Exit codes: 0 done, 1 training failed, 2 wrong usage, 130 stopped.
"""
_STOPPED = "memagent: stopped. What was trained is kept. To continue:\n  {command}"


def train(
    run: Annotated[
        Path | None, typer.Argument(help="YAML file with the settings.", show_default=False)
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting FIELD=VALUE, in YAML. Repeat it for more."),
    ] = None,
) -> None:
    """Replaced by `_EXAMPLES` below."""
    with report_errors(_STOPPED):
        from memagent_graph.rl.grpo import TrainingSettings

        settings = TrainingSettings.model_validate(parse_fields(run, fields))
        with install_hint('Training needs: pip install "memagent-graph[rl]"'):
            from memagent_graph.rl.training import Training
        training = Training(settings)
        stopped = False

        def stop(*_: object) -> None:
            nonlocal stopped
            if stopped:
                raise KeyboardInterrupt
            stopped = True
            print(
                "memagent: stopping after this iteration; again to stop at once.", file=sys.stderr
            )
            training.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        asyncio.run(training.run(_print))
        if stopped:
            raise KeyboardInterrupt
        if training.main:
            print(f"The trained model: {settings.out / 'model'}")


_SHOWN = ("reward", "held_out_reward", "kl", "entropy", "clip_fraction", "memory_tokens")


def _print(metrics: Mapping[str, float]) -> None:
    shown = [f"{name} {metrics[name]:.3f}" for name in _SHOWN if name in metrics]
    skipped = [f"{name} {value}" for name, value in metrics.items() if name.startswith("skipped")]
    print(f"{metrics['iteration']:>5}  {'  '.join([*shown, *skipped])}", flush=True)


train.__doc__ = _EXAMPLES
