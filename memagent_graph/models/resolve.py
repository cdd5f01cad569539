"""From a model's name to a reader."""
def resolve_reader(model, **_): return model
