"""A step of the fold is a core with layers around it; one that is off is not there."""

from dataclasses import replace

import pytest
from fixed_readers import ChainReader, ScriptedReader, numbered
from langgraph.checkpoint.memory import InMemorySaver

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.graph import layers
from memagent_graph.graph.reading import FoldUpdate, Layer, Reading
from memagent_graph.text.tokens import EstimatingTokenizer

TEXT = numbered(40)
THREAD = {"configurable": {"thread_id": "one"}}


class Quota(Layer):
    """A toy gate: of each fold only the first chunks are read."""

    name = "quota"

    def __init__(self, most):
        self.most = most

    async def __call__(self, step, read):
        left = step.fold["layers"].get(self.name, {"left": self.most})["left"]
        if not left:
            return FoldUpdate(None, chunk="skipped", layers={self.name: {"left": 0}})
        update = await read(step)
        return replace(update, layers={**update.layers, self.name: {"left": left - 1}})

    def join(self, states):
        return {"left": sum(state["left"] for state in states)}


def names(**settings):
    reading = Reading("r", ScriptedReader(), ReadingConfig(**settings), EstimatingTokenizer())
    return [layer.name for layer in layers.layers_of(reading) if not layer.needs_store]


def test_a_feature_that_is_off_is_not_in_the_stack():
    assert names() == []
    assert names(skim="lexical") == ["skim"]
    assert names(deadline=9) == ["deadline"]


# Ten chunks: of three segments two chunks are read each, and the one of the fourth.
@pytest.mark.parametrize(("segments", "calls", "left"), [(1, 2 + 1, 0), (4, 7 + 2, 1)])
def test_a_new_gate_is_a_layer_whose_state_is_kept_and_joined(monkeypatch, segments, calls, left):
    given = layers.layers_of
    monkeypatch.setattr(layers, "layers_of", lambda reading: [*given(reading), Quota(2)])
    config = ReadingConfig(chunk_tokens=50, segments=segments)
    agent = create_memagent(ChainReader(), config=config, checkpointer=InMemorySaver())
    out = agent.invoke({"question": "What?", "document": TEXT}, THREAD)
    assert out["usage"]["calls"] == calls
    assert out["coverage"] < 1
    assert agent.get_state(THREAD).values["layers"]["quota"] == {"left": left}
