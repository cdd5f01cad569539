"""The path of every request: access, limits and delivery."""
