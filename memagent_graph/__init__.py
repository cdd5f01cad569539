"""An unlimited reading window for LangGraph agents, by the MemAgent method (arXiv 2507.02259)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.batch import Result, read_many
    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.middleware import ApprovalMiddleware as ApprovalMiddleware
    from memagent_graph.conversation.middleware import MemAgentMiddleware as MemAgentMiddleware
    from memagent_graph.conversation.node import ConversationNode, ConversationState, ReplyNode
    from memagent_graph.conversation.tools import ApprovalNode, create_memory_tools
    from memagent_graph.facts.record import Fact, facts_of
    from memagent_graph.facts.rules import Facts
    from memagent_graph.graph.build import create_memagent
    from memagent_graph.graph.node import MemAgentNode
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.redis import RedisStore
    from memagent_graph.memory.store import store_metrics
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.planning import plan
    from memagent_graph.prompts import Prompts
    from memagent_graph.retriever import MemAgentRetriever
    from memagent_graph.text.files import corpus
    from memagent_graph.tool import create_facts_tool, create_reading_tool

# All but the middlewares: `import *` must work without the extra `langchain`.
__all__ = [
    "ApprovalNode",
    "ConversationMemory",
    "ConversationNode",
    "ConversationState",
    "Fact",
    "Facts",
    "MemAgentNode",
    "MemAgentRetriever",
    "MemoryBank",
    "MemoryVersion",
    "Prompts",
    "ReadingConfig",
    "RedisStore",
    "ReplyNode",
    "Result",
    "corpus",
    "create_facts_tool",
    "create_memagent",
    "create_memory_tools",
    "create_reading_tool",
    "facts_of",
    "plan",
    "read_many",
    "store_metrics",
]

__version__ = "0.1.0"

_MODULES = {
    "batch": ["Result", "read_many"],
    "config": ["ReadingConfig"],
    "conversation.memory": ["ConversationMemory"],
    "conversation.middleware": ["ApprovalMiddleware", "MemAgentMiddleware"],
    "conversation.node": ["ConversationNode", "ConversationState", "ReplyNode"],
    "conversation.tools": ["ApprovalNode", "create_memory_tools"],
    "facts.record": ["Fact", "facts_of"],
    "facts.rules": ["Facts"],
    "graph.build": ["create_memagent"],
    "graph.node": ["MemAgentNode"],
    "memory.bank": ["MemoryBank"],
    "memory.store": ["store_metrics"],
    "memory.redis": ["RedisStore"],
    "memory.version": ["MemoryVersion"],
    "planning": ["plan"],
    "prompts": ["Prompts"],
    "retriever": ["MemAgentRetriever"],
    "text.files": ["corpus"],
    "tool": ["create_facts_tool", "create_reading_tool"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: the command line's help needs none."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
