"""The models of a server, by the names that clients use."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.base import Reader
from memagent_http.refusals import Refusal
from memagent_openai_server.completion import model_card
from memagent_openai_server.records import log
from memagent_openai_server.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from langgraph.store.base import BaseStore

ModelLike: TypeAlias = str | BaseChatModel | Reader | None
"""A model, as for `create_memagent`."""

_UNKNOWN = (
    "its context is unknown: give --window, since a server may cut longer requests without a word"
)


@dataclass(frozen=True)
class Served:
    """One of several models.

    Attributes:
        model: the model, as for `create_memagent`.
        base_url: URL of its server; None takes the one for all models.
        window: context length in tokens; None asks its server.

    Examples:
        >>> from memagent_openai_server import Served, create_app
        >>> large = Served("openai:Qwen/Qwen2.5-7B-Instruct", base_url="http://localhost:8000/v1")
        >>> app = create_app({"large": large, "extractive": "extractive"})
    """

    model: ModelLike
    base_url: str | None = None
    window: int | None = None


Catalogue: TypeAlias = Mapping[str, ModelLike | Served]
"""Models by the names that clients use."""


class Models:
    """The services of a server, one per model, with a common store and shutdown.

    Args:
        services: one for each model; the first is used for requests that name none.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self.first, *others = services
        for other in others:
            other.stopping = self.first.stopping
        self._services = {service.name: service for service in services}

    @classmethod
    def of(
        cls,
        model: ModelLike | Catalogue,
        *,
        base_url: str | None,
        window: int | None,
        store: BaseStore | None,
        **options: Any,
    ) -> Models:
        """Return one model, or those of a catalogue.

        Args:
            model: see `create_app`.
            base_url: URL of the server, for models without their own.
            window: context length in tokens, for models without their own.
            store: store of all memories; None keeps them in this process.
            options: further arguments of every `Service`.

        Raises:
            ConfigurationError: There is no such model, or no model at all.
        """
        options |= {"store": store or InMemoryStore()}
        if not isinstance(model, Mapping):
            return cls([Service(model, base_url=base_url, window=window, **options)])
        if not model:
            raise ConfigurationError("The map of models is empty: name at least one.")
        services = []
        for name, each in model.items():
            found = each if isinstance(each, Served) else Served(each)
            service = Service(
                found.model,
                name=name,
                base_url=found.base_url or base_url,
                window=found.window or window,
                **options,
            )
            services.append(service)
        return cls(services)

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._services)

    def named(self, name: str) -> Service:
        """Return the service of the model that a request names.

        Raises:
            Refusal: There is none of this name.
        """
        found = self._services.get(name)
        if found is None:
            known = ", ".join(map(repr, self._services))
            message = f"The model {name[:200]!r} does not exist: this server has {known}."
            raise Refusal(404, message, code="model_not_found", param="model")
        return found

    async def card(self, name: str) -> dict[str, Any]:
        """Return a model's entry in the list of models.

        Raises:
            Refusal: There is none of this name.
        """
        return model_card(name, await self.named(name).window())

    async def check(self) -> None:
        """Check all models before the first request.

        One of several models may be too small to read, such as one for embeddings. Its requests are
        only passed on, and its users are not remembered.

        Raises:
            ConfigurationError: The budgets fit no model.
            ModelError: A server is up, and has no such model.
        """
        refused, fits = None, False
        for service in self._services.values():
            try:
                await service.check()
            except ConfigurationError as error:
                refused, service.users = error, None
                log.warning("only passed on", extra={"fields": {"model": service.name}})
            else:
                fits = True
            if service.understands and await service.window() is None:
                log.warning(_UNKNOWN, extra={"fields": {"model": service.name}})
        if refused is not None and not fits:
            raise refused

    async def aclose(self) -> None:
        """End all readings, and close all connections."""
        self.first.stopping.set()
        for service in self._services.values():
            await service.aclose()


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    base_url: str | None = None
    window: int | None = Field(default=None, ge=1)
    key: str | None = None


_ENTRIES = TypeAdapter(dict[Annotated[str, Field(min_length=1)], _Entry])


def models_from_file(file: Path) -> dict[str, Served]:
    """Return the models in a TOML file, one per table.

    Raises:
        ConfigurationError: It cannot be read, or has other content.
    """
    try:
        entries = _ENTRIES.validate_python(tomllib.loads(file.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        raise ConfigurationError(message) from None
    except (OSError, ValueError) as error:
        message = f"The models in {file} cannot be read: {error}. Check the path and the TOML."
        raise ConfigurationError(message) from error
    return {name: _served(name, entry) for name, entry in entries.items()}


def _served(name: str, entry: _Entry) -> Served:
    if entry.key is None:
        return Served(entry.model, entry.base_url, entry.window)
    key = os.environ.get(entry.key)
    provider, _, model = entry.model.partition(":")
    if not key:
        message = f"Set the environment variable {entry.key}, the key of the model {name!r}."
        raise ConfigurationError(message)
    if provider != "openai":
        message = f"The model {name!r} takes no key, only openai:MODEL does: leave key out."
        raise ConfigurationError(message)
    endpoint = ChatEndpoint(model=model, base_url=entry.base_url, api_key=SecretStr(key))
    return Served(endpoint, None, entry.window)
