"""Long-term memory for agents made with LangChain's `create_agent`."""

from memagent_langchain_agents.middleware import MemAgentMiddleware

__all__ = ["MemAgentMiddleware"]
