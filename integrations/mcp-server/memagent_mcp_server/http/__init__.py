"""Streamable HTTP: who may come in, how long a request may take to arrive, and how it all ends."""
