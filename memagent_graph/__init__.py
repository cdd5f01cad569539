"""An unlimited reading window for LangGraph agents, by the MemAgent method (arXiv 2507.02259)."""

__version__ = "0.1.0"
