"""A model's configuration with some of it changed, as vLLM's `hf_overrides` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Config = TypeVar("Config")


def overridden(load: Callable[..., Config], overrides: Mapping[str, object]) -> Config:
    """The configuration that `load` makes, with changes.

    Args:
        load: makes one of `transformers`, checked as a whole, from what is named and its file.
        overrides: what to change; of an object only what is named in it.

    Raises:
        ConfigurationError: The configuration has nothing of such a name.
    """
    own = load()
    changed: dict[str, object] = {}
    for name, value in overrides.items():
        if not hasattr(own, name):
            message = f"hf_overrides: the model's config.json has no {name!r}."
            raise ConfigurationError(message)
        known = getattr(own, name)
        if isinstance(known, dict) and isinstance(value, dict):
            changed[name] = {**known, **value}
        else:
            changed[name] = value
    return load(**changed) if changed else own
