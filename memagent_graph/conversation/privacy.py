"""What keeps the notes that a model takes out of the user's streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.constants import TAG_NOSTREAM

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

RUN_NAME = "remember"
"""Of the model calls that fold messages, where they are traced."""


def for_itself(config: RunnableConfig | None) -> RunnableConfig:
    """The config for calls of whose replies a run must not hear: none of its callbacks is called.

    Callbacks of the model itself and tracers that the environment turns on still are.

    Args:
        config: of the run; of what can be configured in it, LangGraph's own is left out.
    """
    configurable = (config or {}).get("configurable", {})
    return {
        "run_name": RUN_NAME,
        "tags": [TAG_NOSTREAM],
        "callbacks": [],
        "configurable": {k: v for k, v in configurable.items() if not k.startswith("__")},
    }
