"""What axe does not look at: the colours of the lanes (WCAG 2.1, 1.4.11)."""

from __future__ import annotations

import re

import pytest

from memagent_inspector.rendering import FOLDER

DEEDS = ("read", "unchanged", "skimmed", "again", "edited", "muted")


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.1 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_was_done_stands_out_from_the_lane(scheme):
    css = (FOLDER / "assets" / "inspector.css").read_text()
    colours = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme == "dark"]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", colours))

    for deed in DEEDS:
        low, high = sorted(luminance(found[name]) for name in (deed, "all"))
        assert (high + 0.05) / (low + 0.05) >= 3, deed
