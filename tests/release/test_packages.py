"""What the sdist and the wheel of each project hold."""

import sys

import pytest
from release.packages import MAIN, PROJECTS, contents, first_folders, run

pytestmark = pytest.mark.release


@pytest.fixture(params=PROJECTS)
def package(request, built):
    return built[request.param]


def test_the_metadata_is_fit_for_an_index(built, tmp_path):
    files = [file for package in built.values() for file in (package.sdist, package.wheel)]

    told = run(sys.executable, "-m", "twine", "check", "--strict", *files, folder=tmp_path).stdout

    assert told.count("PASSED") == len(files)


def test_a_package_is_typed_and_comes_with_its_licence(package):
    files = contents(package.wheel)
    licence = package.metadata.read_text("licenses/LICENSE")

    assert f"{package.module}/py.typed" in files
    others = [name for name in files if name.endswith(".LICENSE.txt") and "dist-info" not in name]
    assert len(others) == (package.module == "memagent_inspector")
    expression = "Apache-2.0 AND 0BSD" if others else "Apache-2.0"  # 0BSD is that of htmx
    assert package.metadata.metadata["License-Expression"] == expression
    assert "Apache License" in (licence or "")


def test_a_wheel_holds_its_package_and_nothing_else(package):
    folders = {name.split("/")[0] for name in contents(package.wheel)}

    assert folders == {package.module, f"{package.module}-{package.metadata.version}.dist-info"}
    tests = [name for name in contents(package.wheel) if "test" in name]
    assert tests == (["memagent_graph/testing.py"] if package.module == "memagent_graph" else [])


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(package):
    assert contents(package.wheel) == contents(package.wheel_of_tree)


def test_the_sdist_of_the_main_package_holds_no_other_project(built):
    ours = "memagent_graph tests conftest.py pyproject.toml README.md CHANGELOG.md LICENSE PKG-INFO"
    assert first_folders(built[MAIN].sdist) == {*ours.split(), ".gitignore"}


def test_every_command_that_a_package_announces_is_in_its_wheel(package):
    modules = {point.module.replace(".", "/") for point in package.metadata.entry_points}

    files = contents(package.wheel)

    assert all(f"{name}.py" in files or f"{name}/__init__.py" in files for name in modules)
