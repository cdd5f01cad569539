"""Whether a text tells what a message says."""


def told(message: str, asked: str, context: str) -> bool:
    """Whether the message stands in the context, word for word, or the question does."""
    return message in context or (bool(asked) and asked in context)
