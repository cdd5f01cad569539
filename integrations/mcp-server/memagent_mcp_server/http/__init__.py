"""Streamable HTTP: access, limits on requests, and shutdown."""
