"""The layers around a step of the fold: one feature each, none of which knows another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memagent_graph.graph.layers.check import CheckLayer
from memagent_graph.graph.layers.gates import Deadline, Gates, Trust
from memagent_graph.graph.versions import Versions

if TYPE_CHECKING:
    from memagent_graph.graph.reading import Layer, Reading


def add_layers(reading: Reading) -> Reading:
    """Return a reading with the layers that its settings ask for."""
    return replace(reading, layers=tuple(layers_of(reading)))


def layers_of(reading: Reading) -> list[Layer]:
    """Return the layers that the settings of a reading ask for, the outermost first."""
    config = reading.config
    gated = reading.has_update_gate
    trusted = gated and reading.is_watched
    if config.skim is not None:  # it takes a while to import numpy
        from memagent_graph.graph.layers.skim import Skim
    return [
        *([Deadline()] if config.deadline is not None else ()),
        *([Skim(config)] if config.skim is not None else ()),
        *([Gates()] if gated else ()),
        Versions(),
        *([Trust()] if trusted else ()),
        *([CheckLayer()] if reading.reader.shortens else ()),
    ]
