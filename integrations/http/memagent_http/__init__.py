"""The HTTP core of memagent's servers: who may call, with how much, and how they run."""

__all__ = ()
