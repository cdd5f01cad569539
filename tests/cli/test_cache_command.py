import pytest
from typer.testing import CliRunner

from memagent_graph.cli.app import app
from memagent_graph.text import converter
from memagent_graph.text.files import open_source

pytest.importorskip("selectolax")


def test_the_cache_is_shown_and_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    page = tmp_path / "page.html"
    page.write_text("<p>The lease was signed by Mr. Fox.</p>" + "<p>It rained.</p>" * 10_000)

    def cache(*words):
        done = CliRunner().invoke(app, ["cache", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "0.0 MB" in cache()
    open_source(page)
    converter.shared.end()
    kept = cache()
    cleared = cache("clear")

    assert kept.startswith(str(tmp_path / "cache"))
    assert "0.1 MB" in kept
    assert cleared == "Removed 1 text.\n"
    assert "0.0 MB" in cache()
    assert cache("clear") == "Removed 0 texts.\n"
