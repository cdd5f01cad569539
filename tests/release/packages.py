"""The projects of this repository, their distributions, and environments to install them into."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
MAIN = "memagent-graph"
_FOLDERS = [file.parent for file in sorted(ROOT.glob("integrations/*/pyproject.toml"))]
PROJECTS = {MAIN: ROOT} | {f"memagent-{folder.name}": folder for folder in _FOLDERS}
UV = (sys.executable, "-m", "uv")
_THEIRS = ("MEMAGENT_", "PYTHONPATH", "VIRTUAL_ENV")
_INSTALLED = re.compile(r"^ \+ ([\w.-]+)(?:==| @ )", re.MULTILINE)


def run(*command: object, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with a status, without this session's settings."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith(_THEIRS)}
    settings |= {"XDG_DATA_HOME": str(folder)}  # no memory of this user's
    settings |= {"UV_PYTHON_DOWNLOADS": "never"}
    # Outside environments, which are deleted; uv keeps the times of files, which Python compares.
    settings |= {"PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    options = {"capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run([*map(str, command)], cwd=folder, env=settings, check=False, **options)
    assert done.returncode == status, f"{command}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return done


@dataclass(frozen=True)
class Built:
    """What a project publishes: an sdist, the wheel of that, and a wheel of the working tree."""

    name: str
    sdist: Path
    wheel: Path
    wheel_of_tree: Path

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def metadata(self) -> Distribution:
        name, version, *_ = self.wheel.name.split("-")
        return PathDistribution(zipfile.Path(self.wheel, f"{name}-{version}.dist-info/"))

    def requirement(self, extras: str = "") -> str:
        return f"{self.name}{extras} @ {self.wheel.as_uri()}"


def build(name: str, out: Path) -> Built:
    """Build in isolation: the sdist, a wheel from it, and a wheel from the tree."""
    folder = PROJECTS[name]
    run(*UV, "build", "--quiet", "--out-dir", out, folder, folder=out)
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", out / "tree", folder, folder=out)
    found = (out.glob(pattern) for pattern in ("*.tar.gz", "*.whl", "tree/*.whl"))
    return Built(name, *(file for (file,) in found))


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist()}


def first_folders(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {PurePosixPath(name).parts[1] for name in archive.getnames()}


class Environment:
    """A fresh virtual environment, and a folder outside the checkout to run its programs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._venv = folder / "venv"
        run(*UV, "venv", "--quiet", "--python", sys.executable, self._venv, folder=folder)

    def install(self, *requirements: object) -> None:
        self._uv("install", "--quiet", *requirements)

    def would_install(self, *requirements: object) -> set[str]:
        """The names of the packages that would come, in lower case."""
        told = self._uv("install", "--dry-run", *requirements).stderr
        return {name.lower() for name in _INSTALLED.findall(told)}

    def check(self) -> None:
        """Fail if a package lacks another, or has one of another version than it needs."""
        self._uv("check")

    def run(
        self, program: str, *words: object, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        return run(self._venv / "bin" / program, *words, folder=self.folder, status=status)

    def _uv(self, command: str, *words: object) -> subprocess.CompletedProcess[str]:
        python = self._venv / "bin" / "python"
        return run(*UV, "pip", command, "--python", python, *words, folder=self.folder)
