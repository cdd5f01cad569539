"""Readings as rollouts of Agent Lightning, which trains the reader."""

from typing import TYPE_CHECKING, Any

from memagent_agent_lightning.rollout import MemAgentRollout, ReadingTask, rollout

if TYPE_CHECKING:
    from memagent_agent_lightning.worker import Worker

__all__ = ["MemAgentRollout", "ReadingTask", "Worker", "rollout"]


def __getattr__(name: str) -> Any:
    """Import the worker at its first use, since `python -m` runs its module."""
    if name == "Worker":
        from memagent_agent_lightning.worker import Worker

        return Worker
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
