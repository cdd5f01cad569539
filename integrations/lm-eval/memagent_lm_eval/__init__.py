"""A model for lm-evaluation-harness that reads long prompts through a memory."""

from memagent_lm_eval.model import MemAgentLM
from memagent_lm_eval.prompts import split

__all__ = ["MemAgentLM", "split"]
