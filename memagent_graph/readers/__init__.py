"""Readers compute `update`, `merge` and `respond`: a chat model, or the built-in extractive one."""
