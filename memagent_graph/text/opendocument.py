"""Read OpenDocument files from the XML of their parts: all that they show, in order."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from lxml import etree

from memagent_graph.text import notation
from memagent_graph.text.html import WebPage
from memagent_graph.text.office import DEEPEST, LEFT_OUT, SIGNS
from memagent_graph.text.package import (
    Block,
    OfficeDocument,
    child,
    get,
    get_integer,
    local,
    own_parts,
    parse_xml,
    split_blocks,
)
from memagent_graph.text.source import PasswordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.package import Element, Package


class OpenDocument(OfficeDocument):
    """The text of an ODT, ODS or ODP, also of one that is a single file of XML."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._styles = dict[str, dict[str, str]]()  # all settings, with those of the style above
        self._lists: dict[str, dict[int, notation.ListLevel]] = {}
        self._counted: dict[str, dict[int, int]] = defaultdict(dict)
        self._style, self._depth, self._counts, self._label = "", -1, dict[int, int](), ""
        self._fields: dict[str, Element] = {}

    def all_blocks(self) -> Iterator[str]:
        """Yield headers, body and footers."""
        if [*self._package.find("META-INF/manifest.xml", "encryption-data")]:
            raise PasswordError
        self._learn_styles("styles.xml")
        margins: dict[str, list[str]] = {"header": [], "footer": []}
        for margin in self._package.find("styles.xml", "header", "footer"):
            margins[local(margin)] += self._blocks(margin)
        self._learn_styles("content.xml")
        for form in self._package.find("content.xml", "forms"):
            self._fields |= {get(field, "id"): field for field in form.iter("{*}*")}
        body = child(self._package.parse("content.xml"), "body")
        if body is None:
            raise ValueError("it has no text of its own, or is damaged")
        yield from (*margins["header"], *self._blocks(body), *margins["footer"])

    def _learn_styles(self, part: str) -> None:
        for style in self._package.find(part, "style"):
            given = (pair for place in (style, *style) for pair in place.attrib.items())
            own = {key.rpartition("}")[2]: value for key, value in given}
            self._styles[get(style, "name")] = {**self._style_of(style, "parent-"), **own}
        for style in self._package.find(part, "list-style", "outline-style"):
            name = get(style, "name") if local(style) == "list-style" else _OUTLINE
            self._lists[name] = {get_integer(at, "level", 1) - 1: _list_level(at) for at in style}

    def _style_of(self, element: Element, of: str = "") -> dict[str, str]:
        return self._styles.get(get(element, f"{of}style-name"), {})

    def _walk(self, parent: Element, *, is_text: bool = False) -> Iterator[str]:  # noqa: C901, PLR0912 - a list
        yield (parent.text or "") * is_text
        for element in parent:
            name = local(element)
            if name in {"p", "h"}:
                yield from map(Block, self._paragraph(element, name))
            elif name in SIGNS:
                yield SIGNS[name] * min(get_integer(element, "c", 1), notation.MOST_REPEATED)
            elif name == "list":
                yield from self._list(element)
            elif name == "numbered-paragraph":
                style, at = get(element, "style-name"), get_integer(element, "level", 1) - 1
                counts = self._counted[get(element, "list-id") or style]
                self._label = self._count(element, style, at, counts)
                yield from self._walk(element)
                self._label = ""
            elif name == "table":
                is_sheet = local(parent) == "spreadsheet"
                heading = f"\f## {get(element, 'name')}{self._say_hidden(element)}\n\n"
                yield Block(heading * is_sheet + self._table(element))
                yield from () if (on := child(element, "shapes")) is None else self._walk(on)
            elif name == "page":
                self.page += 1
                yield Block(f"\f<!-- Slide number: {self.page}{self._say_hidden(element)} -->")
                yield from self._walk(element)
            elif name in {"annotation", "note"}:
                yield f" [{' '.join(self._blocks(element))}]"
            elif name in {"custom-shape", "frame"}:
                yield from map(Block, self._blocks(element))
            elif name == "image":
                yield self._picture(element)
            elif name == "control":
                field = self._fields.get(get(element, "control"))
                self.album.objects += field is None
                yield "" if field is None else _write_field(field)
            elif name in {"object", "object-ole"}:
                yield from self._object(element)
            elif name not in LEFT_OUT:
                is_inner = is_text or name in {"footer-decl", "header-decl"}
                text, blocks = split_blocks(self._walk(element, is_text=is_inner))
                yield self._write(text, name, element)
                yield from blocks
            yield (element.tail or "") * is_text

    def _write(self, text: str, name: str, element: Element) -> str:
        if name == "a":
            address = get(element, "href")
            is_drawn = not text.strip() and ":" in address
            return Block(f"<{address}>") if is_drawn else notation.write_link(text, address)
        if name == "ruby-text":
            return notation.write_ruby(text)
        style = self._style_of(element) if name == "span" else {}
        line = style.get("text-line-through-style", style.get("text-line-through-type", "none"))
        text = text if line == "none" else notation.strike_text(text)
        text = text.translate(notation.SIGNS.get(style.get("font-name", "").lower(), {}))
        height = style.get("text-position", "").partition(" ")[0]
        is_lower = height.startswith(("-", "sub"))
        return notation.raise_text(text, bool(height.strip("0%")) * (-1 if is_lower else 1))

    def _say_hidden(self, element: Element) -> str:
        style = self._style_of(element)
        is_hidden = style.get("display") == "false" or style.get("visibility") == "hidden"
        return " (hidden)" * is_hidden

    def _paragraph(self, element: Element, name: str) -> Iterator[str]:
        level = min(get_integer(element, "outline-level", 1), DEEPEST) if name == "h" else 0
        is_bare = self._style_of(element).get("list-style-name") == ""
        outline = {} if is_bare else self._lists.get(_OUTLINE, {})
        label, self._label = self._label, ""
        if not label and level - 1 in outline and get(element, "is-list-header") != "true":
            if get(element, "restart-numbering") == "true":
                self._counted[_OUTLINE][level - 1] = get_integer(element, "start-value", 1) - 1
            label = notation.count_item(outline, level - 1, self._counted[_OUTLINE])
        text, boxes = split_blocks(self._walk(element, is_text=True))
        text = notation.write_scripts(text).strip()
        yield f"{'#' * level} {label}{text}".lstrip(" ") if text else ""
        yield from boxes

    def _list(self, element: Element) -> Iterator[str]:
        before = self._style, self._depth, self._counts
        first = self._style_of(next(element.iter("{*}p", "{*}h"), None))
        style = get(element, "style-name") or self._style or first.get("list-style-name", "")
        if self._depth < 0:
            goes_on = style if get(element, "continue-numbering") == "true" else ""
            continued = get(element, "continue-list") or goes_on
            self._counts = self._counted[continued] if continued else {}
            self._counted[get(element, "id")] = self._counted[style] = self._counts
        self._style, self._depth = style, self._depth + 1
        for item in element:
            if local(item) == "list-item":
                self._label = self._count(item, style, self._depth, self._counts)
            yield from self._walk(item)
            self._label = ""
        self._style, self._depth, self._counts = before

    def _count(self, item: Element, style: str, at: int, counts: dict[int, int]) -> str:
        levels, begin = self._lists.get(style, {}), get_integer(item, "start-value", -1)
        if begin >= 0:
            counts[at] = begin - 1
        return notation.count_item(levels, at, counts) if at in levels else ""

    def _object(self, element: Element) -> Iterator[str]:
        name = get(element, "href").removeprefix("./")
        content = self._package.read(part := f"{name}/content.xml")
        root = parse_xml(content, part) if content else None
        if root is not None and local(root) == "math":
            yield WebPage(etree.tostring(root, encoding="unicode")).write()
        elif (body := child(root, "body")) is not None:
            yield from self._walk(body)
        else:
            yield self._read_embedded(name)

    def _picture(self, element: Element) -> str:
        named = element.getparent().iter("{*}desc", "{*}title")
        caption = next((at.text for at in named if at.text), "")
        return self._show(get(element, "href").removeprefix("./"), caption)

    def _table(self, element: Element) -> str:
        rows, number, hidden, most = dict[int, list[str]](), 0, list[int](), notation.MOST_REPEATED
        for row in own_parts(element, "table-row", "table"):
            cells: list[str] = []
            for cell in (at for at in row if local(at) in {"table-cell", "covered-table-cell"}):
                times = min(get_integer(cell, "number-columns-repeated", 1), most)
                cells += [" ".join(self._blocks(cell)) or _value(cell)] * times
            begin, number = number + 1, number + get_integer(row, "number-rows-repeated", 1)
            shown = range(begin, min(number, begin + most - 1) + 1) if any(cells) else ()
            rows |= dict.fromkeys(shown, cells)
            hidden += shown if get(row, "visibility") in _COLLAPSED else ()
        unseen, at = list[range](), 0
        for column in own_parts(element, "table-column", "table"):
            begin, at = at + 1, at + get_integer(column, "number-columns-repeated", 1)
            unseen += [range(begin, at + 1)] * (get(column, "visibility") in _COLLAPSED)
        return notation.write_sheet(rows, hidden, unseen)


_PLACE = re.compile("%(\\d{1,2})%")
_COLLAPSED = {"collapse", "filter"}
_OUTLINE = "\n"  # stands for the numbers of headings in the place of a name, which has no line end


def _list_level(element: Element) -> notation.ListLevel:
    style, at = get(element, "num-format"), get_integer(element, "level", 1)
    is_repeated = get(element, "num-letter-sync") == "true"
    numbers = range(at - get_integer(element, "display-levels", 1) + 1, at + 1)
    text = ".".join(f"%{number}" for number in numbers) if style else ""
    text = f"{get(element, 'num-prefix')}{text}{get(element, 'num-suffix')}"
    text = _PLACE.sub(r"%\1", get(element, "num-list-format")) or text  # of LibreOffice
    text = "-" if "bullet" in local(element) else text.strip()
    style = notation.STYLES.get(style, "")
    style = style.replace("Alpha", "Letter") if is_repeated else style
    return notation.ListLevel(text, style, get_integer(element, "start-value", 1))


def _write_field(field: Element) -> str:
    """Return what a field of a form shows: a tick, its label, what was chosen or written."""
    options = field.iter("{*}option")
    chosen = (get(option, "label") for option in options if _is_chosen(option))
    tick = "\u2612" if _is_chosen(field) else "\u2610"
    value = get(field, "current-value", get(field, "value"))
    is_box = local(field) in {"checkbox", "radio"}
    said = (tick if is_box else "", get(field, "label"), *chosen, "" if is_box else value)
    return " ".join(filter(None, [*said, *(at.text for at in field.iter("{*}p"))]))


def _is_chosen(field: Element) -> bool:
    states = (get(field, f"current-{name}", get(field, name)) for name in ("state", "selected"))
    return not {"checked", "true"}.isdisjoint(states)


def _value(cell: Element) -> str:
    values = (get(cell, f"{kind}value") for kind in ("", "date-", "time-", "boolean-", "string-"))
    return next(filter(None, values), get(cell, "formula").partition(":")[2])
