"""The model behind this server."""
