from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

README = Path(__file__).parents[1] / "README.md"


def test_the_code_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("contract.txt").write_text("It rained.\n\nThe lease was signed by Mr. Fox.\n")
    Path("contracts").mkdir()
    Path("contracts", "lease.txt").write_text("The lease was signed by Mr. Fox.\n")
    Path("contracts", "people.txt").write_text("Mr. Fox lives in Rue Morgue.\n")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    module, shown = ModuleType("readme"), []
    monkeypatch.setitem(sys.modules, "readme", module)  # where LangGraph looks up annotations

    for block in blocks:
        exec(block, vars(module))
        shown.append(capsys.readouterr().out)

    assert len(blocks) == 5
    first, node, retriever, tool, chatbot = shown
    assert first.startswith("The lease was signed by Mr. Fox.")
    assert "'finding': 'The lease was signed by Mr. Fox.'" in node
    assert "Mr. Fox lives in Rue Morgue." in retriever
    assert "contract.txt:3" in tool
    assert "My sister Edda breeds goats in Husum." in chatbot


def test_the_files_that_the_readme_links_to_are_there():
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README.read_text("utf-8"))

    assert links
    assert all((README.parent / link).exists() for link in links)
