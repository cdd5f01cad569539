"""`python -m memagent_agent_lightning` is one rollout: what a Kubernetes job runs."""

import asyncio

from memagent_agent_lightning.rollout import MemAgentRollout

if __name__ == "__main__":
    asyncio.run(MemAgentRollout().run())
