"""A model's configuration with some of it changed, as vLLM's `hf_overrides` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def overridden(load: Callable[..., Any], overrides: Mapping[str, Any]) -> Any:
    """The configuration that `load` makes, with changes.

    Args:
        load: makes one of `transformers`, checked as a whole, from what is named and its file.
        overrides: what to change; of an object only what is named in it.

    Raises:
        ConfigurationError: The configuration has nothing of such a name.
    """
    own = load()
    changed = {}
    for name, value in overrides.items():
        if not hasattr(own, name):
            message = f"hf_overrides: the model's config.json has no {name!r}."
            raise ConfigurationError(message)
        known = getattr(own, name)
        merges = isinstance(known, dict) and isinstance(value, dict)
        changed[name] = {**known, **value} if merges else value
    return load(**changed) if changed else own
