"""Train on readings: traces of runs, rewards, advantages and multi-conversation GRPO."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.rl.grpo import GRPOSettings, TrainingSettings, grpo_loss
    from memagent_graph.rl.recorder import TraceRecorder
    from memagent_graph.rl.traces import Rollout
    from memagent_graph.rl.trainer import MultiConversationGRPOTrainer
    from memagent_graph.rl.training import Training

__all__ = [
    "GRPOSettings",
    "MultiConversationGRPOTrainer",
    "Rollout",
    "TraceRecorder",
    "Training",
    "TrainingSettings",
    "grpo_loss",
]

_MODULES = {
    "grpo": ["GRPOSettings", "TrainingSettings", "grpo_loss"],
    "recorder": ["TraceRecorder"],
    "traces": ["Rollout"],
    "trainer": ["MultiConversationGRPOTrainer"],
    "training": ["Training"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name at its first use, since recording needs no PyTorch."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
