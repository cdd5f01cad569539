"""The site's pages that are made from the README, the docstrings and the command's own help.

A hook of MkDocs, which calls the functions by their names.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/memagent-graph/memagent-graph/blob/main/"
PICTURES = "https://raw.githubusercontent.com/memagent-graph/memagent-graph/main/"
WIDTH = 78
"""Characters of a line of the command's help."""

INTEGRATIONS = (
    "memagent_openai_server",
    "memagent_mcp_server",
    "memagent_inspector",
    "memagent_ray",
    "memagent_lm_eval",
    "memagent_agent_lightning",
)
MORE = {
    "memagent_graph": ["ApprovalMiddleware", "MemAgentMiddleware"],
    "memagent_graph.conversation": [
        "catch_up.catch_up",
        "catch_up.acatch_up",
        "exports.import_export",
    ],
    "memagent_graph.evaluation": [
        "run.evaluate",
        "tasks.make_task",
        "samples.Task",
        "samples.Sample",
        "run.SampleResult",
        "samples.Grade",
    ],
    "memagent_graph.evidence": [
        "places.Memory",
        "places.Evidence",
        "places.Unsupported",
    ],
    "memagent_graph.graph": [
        "state.ReadingInput",
        "state.ReadingOutput",
        "state.QuestionAnswer",
        "events.OpenedEvent",
        "events.ChunkEvent",
        "events.SkipEvent",
        "events.FallbackEvent",
        "events.MergeEvent",
        "events.AnswerEvent",
    ],
    "memagent_graph.memory": [
        "bank.diff",
        "bank.History",
        "bank.Forgotten",
        "bank.ForgottenSource",
        "version.ReadDocument",
        "version.ChunkRead",
        "version.VersionMerge",
        "version.TextEdit",
        "version.MessageFold",
    ],
    "memagent_graph.models": [
        "endpoint.ChatEndpoint",
        "vllm.ChatVLLM",
        "transformers.ChatTransformers",
        "completion.LocalChatModel",
        "completion.Generation",
    ],
    "memagent_graph.readers": [
        "base.Reader",
        "base.Identity",
        "base.Step",
        "base.Update",
        "base.Merge",
        "base.Answer",
        "base.Usage",
        "resolve.resolve_reader",
    ],
    "memagent_graph.rl": [
        "grpo.group_advantages",
        "grpo.informative",
        "grpo.Baseline",
        "grpo.exact",
        "grpo.substring",
        "grpo.make_reward",
        "traces.JSONLinesSink",
        "traces.ListSink",
        "traces.load",
        "traces.LoadedTraces",
        "traces.Conversation",
    ],
    "memagent_graph.text": ["files.open_source", "source.Source", "source.Location"],
}
"""What the guides import from below a package, which `__all__` of the package does not have."""

log = get_plugin_logger("pages")  # its warnings fail a strict build


@event_priority(100)  # before the plugin that adds a version to it
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the site's address from where the packages have it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    config.site_url = project["urls"]["Documentation"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are in no file."""
    pages = {"index.md": start_page(), "command-line.md": command_line(), **python_pages()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links to files outside docs/ lead to the repository."""
    folder = (DOCS / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            log.warning("%s links to %s, which is not there.", page.file.src_uri, link[1])
        return f"]({REPOSITORY}{target.relative_to(ROOT)}"

    return re.sub(r"\]\((\.\./[^)#\s]+)", outside, markdown)


def start_page() -> str:
    """The README, with links that stay on the site."""
    text = (ROOT / "README.md").read_text("utf-8")
    return text.replace(REPOSITORY + "docs/", "").replace(PICTURES + "docs/", "")


def public_names() -> dict[str, list[str]]:
    """The public names of each module, as tests/public_api.py has them, and those of MORE."""
    api = runpy.run_path(str(ROOT / "tests/public_api.py"))
    found = {name: import_module(name) for name in (*api["MODULES"], *MORE, *INTEGRATIONS)}
    names = {
        name: sorted(set(getattr(module, "__all__", None) or api["own"](module)))
        + MORE.get(name, [])
        for name, module in found.items()
    }
    return {name: public for name, public in names.items() if public}


def python_pages() -> dict[str, str]:
    """A page for each module, with the docstring of every public name."""
    return {
        f"python/{module}.md": f"# {module}\n\n{import_module(module).__doc__}\n\n"
        + "\n\n".join(f"::: {module}.{name}" for name in names)
        for module, names in public_names().items()
    }


def command_line() -> str:
    """The help of `memagent`, of each command, and of each command within a command."""
    import typer

    from memagent_graph.cli.app import app

    helps = commands(typer.main.get_command(app), "memagent", None)
    return "# The command line\n\n" + "\n\n".join(
        f"## {name}\n\n```text\n{text}\n```" for name, text in helps
    )


def commands(command: Any, name: str, above: Any) -> Iterator[tuple[str, str]]:
    """A command and those below it: the words to type, and the help."""
    context = command.context_class(
        command,
        info_name=name,
        parent=above,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    yield context.command_path, command.get_help(context)
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, word, context)
