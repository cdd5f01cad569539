"""Read presentations: PPTX, with notes and comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.text.office import OFF, Drawing
from memagent_graph.text.package import child, get

if TYPE_CHECKING:
    from collections.abc import Iterator


class Slides(Drawing):
    """The text of a PPTX, slide by slide, with notes and comments."""

    def all_blocks(self) -> Iterator[str]:
        """Yield the blocks of each slide."""
        order = child(self._package.parse(self._part), "sldIdLst")
        for slide in order if order is not None else ():
            self.page += 1
            yield from self._slide(self._part_of(slide))

    def _slide(self, part: str) -> Iterator[str]:
        above, self._layouts = part, []
        for kind in ("slideLayout", "slideMaster"):
            above = dict(self._package.targets(above).values()).get(kind, "-")
            self._layouts.append(self._package.parse(above))
        shown = get(self._package.parse(part), "show", "1")
        yield f"\f<!-- Slide number: {self.page}{' (hidden)' if shown in OFF else ''} -->"
        yield from self._read_part(part, "cSld", "spTree")
        self._layouts = []
        for kind, target in self._package.targets(part).values():
            if kind == "notesSlide":
                notes = "\n".join(filter(None, self._read_part(target, "cSld", "spTree")))
                yield f"Notes: {notes}" if notes else ""
            elif kind == "comments":
                root = self._package.parse(target)
                for text in root.iter("{*}text", "{*}t") if root is not None else ():
                    yield f"Comment: {text.text}" if text.text else ""
