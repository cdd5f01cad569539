"""Stub."""


def told(message: str, asked: str, context: str) -> bool:
    return message in context
