"""Readings as rollouts of Agent Lightning, which trains the reader."""

from memagent_agent_lightning.rollout import MemAgentRollout, ReadingTask, rollout
from memagent_agent_lightning.worker import Worker

__all__ = ["MemAgentRollout", "ReadingTask", "Worker", "rollout"]
