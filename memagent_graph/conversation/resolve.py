"""Make the reader that keeps the memory of a conversation from a model or its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_graph.conversation.asking import NotesReader
from memagent_graph.conversation.built_in import NewestReader
from memagent_graph.conversation.profiling import ProfileReader
from memagent_graph.errors import ConfigurationError
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.fields import Fields
    from memagent_graph.readers.base import Reader


def for_notes(reader: Reader) -> BaseChatModel | Reader:
    """Return the reader that folds conversations where `reader` reads documents.

    A chat reader asks its model about documents: the model itself is asked for notes on people.
    """
    return reader.model if type(reader) is ChatReader else reader


def resolve_keeper(
    model: str | BaseChatModel | Reader | None,
    *,
    config: ReadingConfig,
    tokenizer: TokenizerLike = None,
    keep: str = "",
    never: str = "",
    fields: Fields[Any] | None = None,
) -> Reader:
    """Make a reader of whatever names one; a chat model is asked for notes on people.

    Args:
        model: the model, as for `resolve_reader`. A chat reader with prompts of its own keeps them.
        config: the budgets.
        tokenizer: measures the memory of the built-in reader; no text can forge its control tokens
            in the prompts of a chat model.
        keep: words that make a statement count more, for the built-in reader.
        never: words of statements to leave out, for the built-in reader.
        fields: fields of a profile, which needs a chat model.

    Raises:
        ConfigurationError: The string names no model, `never` has no word to go by, or a profile
            is to be kept by a reader that is not a chat model.
        MissingDependencyError: The model's package is not installed.
    """
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    reader = resolve_reader(model, config=config, tokenizer=known)
    if fields is not None:
        if not isinstance(reader, ChatReader):
            message = (
                f"{reader.identity.name} cannot keep a profile: with a schema, name a chat model, "
                'such as "openai:gpt-4o".'
            )
            raise ConfigurationError(message)
        return ProfileReader(
            reader.model, fields, config=config, name=reader.identity.name, tokenizer=known
        )
    if type(reader) is ExtractiveReader:  # no word of the standing question would be found
        return NewestReader(config, load_tokenizer(known), keep=keep, never=never)
    if type(reader) is ChatReader and reader is not model:
        return NotesReader(reader.model, config=config, name=reader.identity.name, tokenizer=known)
    return reader
