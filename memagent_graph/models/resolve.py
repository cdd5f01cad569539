"""From a model's name to a reader."""
def resolve_reader(model, *, config=None, **_):
    from memagent_graph.readers.extractive import ExtractiveReader
    return ExtractiveReader(config) if model in (None, "extractive") else model
