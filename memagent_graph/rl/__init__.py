"""Learn from readings: traces of runs, rewards, advantages and multi-conversation GRPO."""
