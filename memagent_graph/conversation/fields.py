"""The fields of a profile, from a pydantic model, and what of a text fits them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from pydantic import BaseModel, PydanticUserError, ValidationError
from typing_extensions import TypeVar

from memagent_graph.conversation.entries import Entry, read
from memagent_graph.conversation.schema import fields_of, schema_of_changes
from memagent_graph.counted import counted
from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Profile = TypeVar("Profile", bound=BaseModel)

Json = Any
"""A JSON value."""

_log = logging.getLogger(__name__)


class Fitted(NamedTuple, Generic[Profile]):
    """A profile, and the entries that it was made from.

    Attributes:
        profile: the instance.
        entries: entries of the profile, each value as the schema writes it.
        misfits: entries for which the schema has no field, or a field of another type.
    """

    profile: Profile
    entries: list[Entry]
    misfits: list[Entry]


class Fields(Generic[Profile]):
    """The fields that a pydantic model asks to be known of a person.

    Args:
        schema: the model. Nothing is known of a person at first, so each of its fields has a
            default.

    Attributes:
        by_path: each field. A model within the model is merged field by field if all of its fields
            have defaults, and is one value otherwise.
        changes: the JSON Schema of a reply with changes: fields, actions, values, numbers of
            messages.

    Raises:
        ConfigurationError: It is not a pydantic model, a field has no default, or JSON cannot say
            what it holds.
    """

    def __init__(self, schema: type[Profile]) -> None:
        if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
            message = f"schema must be a pydantic model, not {schema!r}."
            raise ConfigurationError(message)
        self.schema = schema
        self._warned = False
        name = schema.__name__
        try:
            schema()
            found = schema.model_json_schema()
        except ValidationError as error:
            fields = ", ".join(str(found["loc"][0]) for found in error.errors() if found["loc"])
            message = (
                f"Nothing is known about a person at first, but {name} cannot be empty: give a "
                f"default to {fields or 'what its validators ask for'}, such as None."
            )
            raise ConfigurationError(message) from error
        except PydanticUserError as error:
            message = f"{name} cannot be a profile, because JSON cannot express its fields: {error}"
            raise ConfigurationError(message) from error
        self.by_path = {field.path: field for field in fields_of(found)}
        self.changes = schema_of_changes([*self.by_path.values()], found.get("$defs", {}))
        if not self.by_path:
            message = f"{name} has no fields: add some for what to remember about a person."
            raise ConfigurationError(message)

    def fit(self, entries: Sequence[Entry]) -> Fitted[Profile]:
        """The profile that some entries make, without those that do not fit.

        Where they do not fit together, the earlier ones stay.
        """
        known = [entry for entry in entries if entry.field in self.by_path]
        profile = self._build(known)
        if profile is None:
            kept: list[Entry] = []
            for entry in known:
                if self._build([*kept, entry]) is not None:
                    kept.append(entry)
            known, profile = kept, self._build(kept)
        if profile is None:  # a validator that is never content twice
            known, profile = [], self.schema()
        fits = {id(entry) for entry in known}
        return Fitted(
            profile,
            [*self._as_written(profile, known)],
            [entry for entry in entries if id(entry) not in fits],
        )

    def load(self, text: str) -> Profile:
        """The profile that a memory is, without what does not fit, which is logged once."""
        entries, others = read(text)
        profile, _, misfits = self.fit(entries)
        if (misfits or others) and not self._warned:
            self._warned = True
            _log.warning(
                "Left out: %s of a memory for which %s has no place. `entries` and `history` "
                "have everything. (Logged once.)",
                counted(len(misfits) + len(others), "line"),
                self.schema.__name__,
            )
        return profile

    def tell(self, text: str) -> str:
        """Return the text of a profile for a model: a line for each entry that fits the schema."""
        return "\n".join(entry.told for entry in self.fit(read(text)[0]).entries)

    def complain(self, entries: Sequence[Entry]) -> str:
        """Return the errors of these entries by the schema, for the model that gave them."""
        try:
            self.schema.model_validate_json(json.dumps(self._assemble(entries)))
        except ValidationError as error:
            return "; ".join(
                f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
            )
        return ""

    def _build(self, entries: Sequence[Entry]) -> Profile | None:
        try:
            return self.schema.model_validate_json(json.dumps(self._assemble(entries)))
        except ValidationError:
            return None

    def _assemble(self, entries: Sequence[Entry]) -> dict[str, Json]:
        whole: dict[str, Json] = {}
        for entry in entries:
            *parents, name = entry.field.split(".")
            inner = whole
            for parent in parents:
                inner = inner.setdefault(parent, {})
            if self.by_path[entry.field].many:
                inner.setdefault(name, []).append(entry.value)
            else:
                inner[name] = entry.value
        return whole

    def _as_written(self, profile: Profile, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Entries with their values as the model writes them: without what it ignores, say."""
        whole = profile.model_dump(mode="json", by_alias=True)
        counts = Counter(entry.field for entry in entries)
        seen: Counter[str] = Counter()
        for entry in entries:
            field = self.by_path[entry.field]
            found: Json = whole
            for name in entry.field.split("."):
                found = found.get(name) if isinstance(found, dict) else None
            if field.many:
                whole_list = isinstance(found, list) and len(found) == counts[entry.field]
                found = found[seen[entry.field]] if whole_list and field.ordered else None
                seen[entry.field] += 1
            yield entry if found is None else entry._replace(value=found)
