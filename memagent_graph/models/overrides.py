"""Override parts of a model's configuration, like vLLM's `hf_overrides`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Config = TypeVar("Config")


def overridden(load: Callable[..., Config], overrides: Mapping[str, object]) -> Config:
    """Load a configuration with changes.

    Args:
        load: loads a configuration of `transformers`, with the given values in place of the
            file's.
        overrides: values by name; an object is merged with the one in the file.

    Raises:
        ConfigurationError: The configuration has no value of that name.
    """
    own = load()
    changed: dict[str, object] = {}
    for name, value in overrides.items():
        if not hasattr(own, name):
            message = f"hf_overrides: the model's config.json has no {name!r}; check its spelling."
            raise ConfigurationError(message)
        known = getattr(own, name)
        if isinstance(known, dict) and isinstance(value, dict):
            changed[name] = {**known, **value}
        else:
            changed[name] = value
    return load(**changed) if changed else own
