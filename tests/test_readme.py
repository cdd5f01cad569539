from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel

README = Path(__file__).parents[1] / "README.md"
RAG = README.with_name("docs") / "replacing-rag.md"


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


def test_the_code_for_teams_with_a_rag_pipeline_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("contracts").mkdir()
    said = "The lease may be terminated early by Mr. Fox."
    Path("contracts", "lease <1>.txt").write_text(f"It rained.\n\n{said} The rent is 80 euros.\n")
    Path("contracts", "people.txt").write_text("Mr. Fox lives in Rue Morgue.\n")
    blocks = re.findall(r"```python\n(.*?)```", RAG.read_text("utf-8"), re.DOTALL)
    llm, embeddings = FakeListChatModel(responses=[said]), DeterministicFakeEmbedding(size=8)
    names, shown = {"llm": llm, "embeddings": embeddings}, []

    for block in blocks:
        exec(block, names)
        shown.append(capsys.readouterr().out)

    before, after, answer, several, links = shown
    assert before == after == answer == f"{said}\n"
    assert several.splitlines()[0].endswith("early? ['contracts/lease <1>.txt']")
    address = "https://files.example.com/contracts/lease%20%3C1%3E.txt#L3"
    assert links == f'<a href="{address}">{said}</a>\n'


@pytest.mark.parametrize("page", [README, RAG], ids=["readme", "rag"])
def test_the_files_that_a_page_links_to_are_there(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8"))

    assert links
    assert all((page.parent / link).exists() for link in links)
