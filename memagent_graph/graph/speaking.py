"""Stream an answer as it is written, in `stream_mode="messages"` of the graph or its host."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables.config import merge_configs, set_config_context
from langgraph.graph.message import push_message

from memagent_graph.readers.completion import Listener

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


class Speech:
    """Puts the pieces of an answer into the message stream.

    Args:
        config: config of the node that answers.
        host: config of the host's node that the graph runs in, if any. The pieces are then
            messages of that node, visible with and without `subgraphs=True`.
        held: whether the answer may still be discarded; pieces are then kept until `release`.

    Attributes:
        config: config for the reader's call.
    """

    def __init__(
        self, config: RunnableConfig, host: RunnableConfig | None = None, *, held: bool = False
    ) -> None:
        self.config = merge_configs(config, {"callbacks": [Listener(self._hear)]})
        self._target = host or config
        self._id = f"answer-{uuid4()}"
        self._held: list[str] | None = [] if held else None

    def release(self) -> None:
        """Stream the pieces that were kept."""
        held, self._held = self._held, None
        if held:
            self._hear("".join(held), True)  # noqa: FBT003 - the listener's signature

    def _hear(self, piece: str, last: bool) -> None:  # noqa: FBT001 - the listener's signature
        if self._held is not None:
            self._held.append(piece)
            return
        message = AIMessageChunk(
            content=piece, id=self._id, chunk_position="last" if last else None
        )
        with set_config_context(self._target) as context:
            context.run(push_message, message, state_key=None)
