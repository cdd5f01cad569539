"""`python -m memagent_agent_lightning` runs one rollout, as in a Kubernetes job."""

import asyncio

from memagent_agent_lightning.rollout import MemAgentRollout

if __name__ == "__main__":
    asyncio.run(MemAgentRollout().run())
