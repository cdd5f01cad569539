"""Train on readings: traces of runs, rewards, advantages and multi-conversation GRPO."""
