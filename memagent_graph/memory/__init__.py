"""Memories in stores: versions, names, people, and the stores themselves."""
