"""What a user has after `pip install`, outside the checkout."""

import pytest
from release.packages import PROJECTS

pytestmark = pytest.mark.release

CORE = "memagent-http"
"""What the servers share."""
SERVERS = ("memagent-inspector", "memagent-mcp-server", "memagent-openai-server")
SMALL = ("memagent-agent-lightning", CORE, *SERVERS)
LARGE = ("memagent-lm-eval", "memagent-ray")
"""What they need takes hundreds of megabytes: it is resolved, but not installed."""

LEASE = "Rain fell. The lease was signed by Ann Kestrel in Husum. The harbour was cold.\n"
QUESTION = "Who signed the lease?"
ANSWER = "The lease was signed by Ann Kestrel in Husum."

READ = f"""
from memagent_graph import create_memagent
print(create_memagent().invoke({{"question": {QUESTION!r}, "document": {LEASE!r}}})["answer"])
"""
IMPORT = """
import pkgutil, sys
from importlib import import_module
package = import_module(sys.argv[1])
for module in pkgutil.iter_modules(package.__path__):
    if module.name != "__main__":
        import_module(f"{package.__name__}.{module.name}")
print(package.__file__)
"""


def test_the_command_line_answers_from_a_file(main, environment):
    environment.install(main.requirement("[cli]"))
    (environment.folder / "lease.txt").write_text(LEASE)

    asked = environment.run("memagent", "ask", QUESTION, "lease.txt")
    answer, place, *_ = asked.stdout.splitlines()
    told = environment.run("memagent", "--help").stdout

    assert answer == ANSWER
    assert place == "  at lease.txt:1"
    assert all(f" {command} " in told for command in ("ask", "batch", "eval", "memory", "train"))
    environment.check()


def test_without_extras_python_reads_and_the_command_says_what_to_install(main, environment):
    environment.install(main.requirement())

    assert environment.run("python", "-c", READ).stdout.strip() == ANSWER
    assert 'pip install "memagent-graph[cli]"' in environment.run("memagent", status=1).stderr


def test_the_middleware_for_create_agent_comes_with_its_extra(main, environment):
    command = ("python", "-c", "from memagent_graph import MemAgentMiddleware")
    environment.install(main.requirement())
    assert 'pip install "memagent-graph[langchain]"' in environment.run(*command, status=1).stderr

    environment.install(main.requirement("[langchain]"))

    environment.run(*command)
    environment.check()


@pytest.mark.parametrize("name", SMALL)
def test_an_integration_is_installed_and_its_modules_imported(main, built, environment, name):
    core = built[CORE].requirement()
    environment.install(*{main.requirement(), core, built[name].requirement()})

    file = environment.run("python", "-c", IMPORT, built[name].module).stdout

    assert file.startswith(str(environment.folder))
    environment.check()


def test_servers_add_their_commands_to_the_command_line(main, built, environment):
    told = [built[name].requirement() for name in (CORE, *SERVERS)]
    environment.install(main.requirement("[serve,mcp,inspect]"), *told)

    for command in ("serve", "mcp", "inspect"):
        page = environment.run("memagent", command, "--help").stdout
        assert page.startswith(f"Usage: memagent {command} ")
    assert "Not installed" not in environment.run("memagent", "--help").stdout


@pytest.mark.parametrize("name", PROJECTS)
def test_nothing_brings_pytorch_unasked(main, built, environment, name):
    wanted = {main.requirement("[cli]"), built[CORE].requirement(), built[name].requirement()}

    packages = environment.would_install(*wanted)

    assert {main.name, name} <= packages
    assert not packages & {"torch", "vllm", "triton"}
    assert not [package for package in packages if package.startswith("nvidia")]


def test_every_integration_is_checked():
    assert {*SMALL, *LARGE} == PROJECTS.keys() - {"memagent-graph"}
