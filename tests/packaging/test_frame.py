"""The frame of the project: packages, dependencies, names, sizes. Nothing here knows what the code computes."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("slob_opt", "solvers", "experiments", "runtime")
MAX_MODULE_LINES = 400

# Import names that differ from the distribution's name.
IMPORT_NAMES = {"pyyaml": "yaml", "pre-commit": "pre_commit", "import-linter": "importlinter"}
HEAVY = (
    *("torch", "transformers", "mlflow", "optuna", "pandas", "matplotlib", "pulp", "ortools", "highspy"),
    *("pydantic", "yaml", "typer", "rich", "scipy", "numpy"),
)


def modules() -> Iterator[Path]:
    """Yield every module file of the four packages, sorted."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def dotted(path: Path) -> str:
    """Return the import name of a module file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def project() -> dict:
    """Return the table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements() -> list[tuple[str, Requirement]]:
    """Return each requirement of pyproject.toml beside the extra that asks for it (``core`` for none)."""
    groups = {"core": project()["dependencies"], **project()["optional-dependencies"]}
    return [(extra, Requirement(line)) for extra, lines in groups.items() for line in lines]


def pins() -> dict[str, str]:
    """Return the version that constraints.txt pins for each distribution."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    found = {}
    for line in filter(None, lines):
        name, operator, version = line.partition("==")
        assert operator, f"constraints.txt: {line!r} is no exact pin"
        found[canonicalize_name(name)] = version
    return found


def repository_files() -> list[Path]:
    """Return the files that git tracks or would track; skips the test where there is no git checkout."""
    try:
        # safe.directory: a checkout that belongs to another user (a container's volume) is read all the same.
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a git checkout: {error}")
    paths = (ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name)
    return [path for path in paths if path.is_file()]  # a tracked file may be deleted in the working tree


# ------------------------------------------------------------------------------------------------------------ packages


def test_the_four_packages_come_from_this_folder() -> None:
    """The names are generic: a foreign ``solvers`` or ``runtime`` on the path must not stand in for ours."""
    origins = {name: importlib.util.find_spec(name).origin for name in PACKAGES}
    assert origins == {name: str(ROOT / name / "__init__.py") for name in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_brings_nothing_heavy(package: str, tmp_path: Path) -> None:
    code = f"import sys, {package}; print(*sorted(set(sys.modules) & {set(HEAVY)!r}))"
    # -I and a foreign working directory: what is imported is what is installed.
    result = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_and_that_it_is_typed(package: str) -> None:
    assert importlib.import_module(package).__doc__
    assert (ROOT / package / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder without ``__init__.py`` works from the checkout and is missing from the wheel."""
    missing = {path.parent for path in modules() if not (path.parent / "__init__.py").is_file()}
    assert sorted(map(str, missing)) == []


def test_the_version_is_one() -> None:
    import slob_opt

    assert slob_opt.__version__ == project()["version"] == importlib.metadata.version("slob")


def test_the_console_script_starts_the_command_line() -> None:
    scripts = importlib.metadata.distribution("slob").entry_points.select(group="console_scripts")
    assert {script.name: script.value for script in scripts} == {"slob": "experiments.cli.main:main"}
    assert callable(scripts["slob"].load())


# -------------------------------------------------------------------------------------------------------- dependencies


@pytest.mark.parametrize(("extra", "requirement"), requirements(), ids=str)
def test_constraints_pin_what_pyproject_asks_for(extra: str, requirement: Requirement) -> None:
    pinned = pins().get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} ({extra}) is not in constraints.txt"
    assert requirement.specifier.contains(pinned), f"constraints.txt pins {pinned}, pyproject.toml wants {requirement}"


def test_each_requirement_stands_in_one_group() -> None:
    names = [canonicalize_name(requirement.name) for _, requirement in requirements()]
    assert sorted(names) == sorted(set(names))


# --------------------------------------------------------------------------------------------------------------- names


def test_no_module_is_named_like_the_standard_library_or_a_dependency() -> None:
    taken = {name.lower() for name in sys.stdlib_module_names}
    for name in pins():
        taken.add(IMPORT_NAMES.get(name, name.replace("-", "_")))
    ours = [*modules(), *(ROOT / "tests" / "support").glob("*.py")]
    names = {path: path.parent.name if path.stem == "__init__" else path.stem for path in ours}
    clashes = [str(path.relative_to(ROOT)) for path, name in names.items() if name.lower() in taken]
    assert clashes == []


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [str(path) for path in modules() if drawers & {path.stem, path.parent.name}] == []


def test_test_folders_are_no_packages() -> None:
    """With an ``__init__.py`` the mirror folders would be importable under the names of our packages."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_nothing_names_the_place_where_it_was_written() -> None:
    """No absolute path of a development machine; the marks are put together here, so that this file has none either."""
    marks = re.compile("|".join(map(re.escape, ("/" + "work/", "." + "library"))))
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        for match in [marks.search(path.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]
    assert found == []


# --------------------------------------------------------------------------------------------------- size and examples


def test_modules_stay_readable() -> None:
    """One idea per module. The catalogue is data and may be as long as it needs."""
    sizes = {
        dotted(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules()
        if "catalogue" not in path.parts
    }
    assert {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES} == {}


@pytest.mark.parametrize("module", [dotted(path) for path in modules() if ">>>" in path.read_text(encoding="utf-8")])
def test_docstring_examples_run(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_benchmarks_are_marked() -> None:
    """The mark keeps them out of the ordinary run, where other processes share the cores."""
    files = sorted((ROOT / "tests" / "benchmarks").rglob("test_*.py"))
    unmarked = [path.name for path in files if "pytest.mark.benchmark" not in path.read_text(encoding="utf-8")]
    assert unmarked == []


def test_ci_script_can_be_started() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
