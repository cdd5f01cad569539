"""Evidence: where a statement stands, and whether anything supports it."""
