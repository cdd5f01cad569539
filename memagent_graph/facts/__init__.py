"""A memory of facts: subject, relation and object, with the time in which each holds."""
