"""A LangGraph store on Redis, with compare-and-put and a live feed."""

from memagent_graph.memory.redis.store import RedisStore

__all__ = ["RedisStore"]
