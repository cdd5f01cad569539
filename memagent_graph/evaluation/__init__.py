"""Measure any model with long documents: tasks, methods, scores and a report."""
