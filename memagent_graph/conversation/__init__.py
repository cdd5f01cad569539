"""Memory of people, across conversations."""
