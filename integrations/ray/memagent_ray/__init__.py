"""Read many documents on a Ray cluster."""

from memagent_ray.reading import read_dataset

__all__ = ["read_dataset"]
