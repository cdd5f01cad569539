"""Keep the notes that a model takes out of the user's streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.constants import TAG_NOSTREAM

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

RUN_NAME = "remember"
"""Name, in traces, of the model calls that fold messages."""


def for_itself(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config for calls whose replies must not reach a run's callbacks.

    Callbacks of the model itself, and tracers that the environment turns on, are still called.

    Args:
        config: config of the run; LangGraph's own keys of `configurable` are left out.
    """
    configurable = (config or {}).get("configurable", {})
    return {
        "run_name": RUN_NAME,
        "tags": [TAG_NOSTREAM],
        "callbacks": [],
        "configurable": {k: v for k, v in configurable.items() if not k.startswith("__")},
    }
