"""An unlimited reading window for LangGraph agents, by the MemAgent method (arXiv 2507.02259)."""

from memagent_graph.config import ReadingConfig
from memagent_graph.graph import create_memagent
from memagent_graph.node import MemAgentNode

__all__ = ["MemAgentNode", "ReadingConfig", "create_memagent"]

__version__ = "0.1.0"
