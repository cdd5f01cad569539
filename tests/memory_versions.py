"""Versions of memories, as a reading or a conversation would have made them."""

from dataclasses import fields, replace

from memagent_graph.evidence.places import Memory
from memagent_graph.memory.version import ChunkRead, MemoryVersion, ReadDocument, child_id, root_id


def make_version(
    text: str,
    step: int = 1,
    *,
    before: MemoryVersion | None = None,
    question: str = "Who pays the rent?",
    width: int = 100,
    **more: object,
) -> MemoryVersion:
    """The memory after a section of `width` code points; further arguments as for `change`."""
    root = root_id(question, "reader") if before is None else before.root
    parent = root if before is None else before.id
    made = MemoryVersion(
        id=child_id(parent, f"{step} {text}", "reader"),
        parent=parent,
        root=root,
        question=question,
        fingerprint="reader",
        step=step,
        document=ReadDocument("ab" * 32, "lease.txt", 1000, width * step),
        memory=Memory(text),
        tokens=len(text) // 4,
        made_by=ChunkRead(width * (step - 1)),
        sources=() if before is None else before.documents,
    )
    return change(made, **more)


def change(version: MemoryVersion, **more: object) -> MemoryVersion:
    """The version with other values of its fields, or of those of its parts."""
    for name in ("document", "memory", "made_by"):
        part = more.get(name, getattr(version, name))
        own = {item.name for item in fields(part)} & more.keys()
        more[name] = replace(part, **{key: more.pop(key) for key in own})
    return replace(version, **more)
