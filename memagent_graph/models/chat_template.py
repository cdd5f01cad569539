"""Turn messages into the token ids that a model in this process reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import convert_to_openai_messages

from memagent_graph.errors import ConfigurationError
from memagent_graph.text.tokens import HuggingFaceTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.messages import BaseMessage


class ChatTemplate:
    """Turns messages into a prompt in the format that the model was trained on.

    Args:
        tokenizer: a tokenizer of `transformers`, with a chat template.
        variables: variables of the template, such as `enable_thinking`.

    Raises:
        ConfigurationError: The tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, object] | None = None) -> None:
        if getattr(tokenizer, "chat_template", "") is None:
            message = (
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template: use the "
                "model's instruction-tuned version, or set chat_template in its "
                "tokenizer_config.json."
            )
            raise ConfigurationError(message)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.tokenizer = HuggingFaceTokenizer(backend) if backend is not None else None
        self._original = tokenizer
        self._variables = dict(variables or {}, add_generation_prompt=True)

    def token_ids(self, messages: Sequence[BaseMessage]) -> list[int]:
        """Return the token ids of the text of `messages`, up to where the reply begins."""
        asked = convert_to_openai_messages(list(messages))
        template = self._original.apply_chat_template
        if self.tokenizer is None:  # it is not of the `tokenizers` library
            ids: list[int] = template(asked, tokenize=True, return_dict=False, **self._variables)
            return ids
        return self.tokenizer.encode(template(asked, tokenize=False, **self._variables))
