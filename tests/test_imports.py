"""What is imported when: nothing optional before it is used, and the core with torch and numpy alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cpaan
from cpaan.errors import InputError
from cpaan.extras import EXTRAS, import_extra

CORE = ("data", "math", "training", "parts", "gan")
OTHERS = (
    "estimator",
    "centers",
    "deviations",
    "augmenters",
    "classifiers",
    "representations",
    "evaluation",
    "methods",
    "hub",
    "cli.app",
    "extras",
)
OPTIONAL = (*EXTRAS, "datasets", "plotly", "polars")

EVERY_MODULE = """
import importlib, pkgutil, sys

def import_all(name):
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        # Kernels need Triton, which comes with torch for CUDA alone.
        if not found.name.endswith("_kernels"):
            importlib.import_module(found.name)
"""

BLOCK = """
import torch, numpy

class OnlyTorchAndNumpy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ("cpaan", "torch", "numpy") and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"the core wants {name}", name=name)

sys.meta_path.insert(0, OnlyTorchAndNumpy())
"""


def run(code: str) -> str:
    source = Path(cpaan.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_core_needs_torch_and_numpy_alone() -> None:
    run(EVERY_MODULE + BLOCK + "".join(f"import_all('cpaan.{name}')\n" for name in CORE))


def test_importing_imports_nothing_optional() -> None:
    # Figures alone are drawn by modules that import matplotlib at once. Pandas is kept away, because scikit-learn
    # imports it where it is there, and it imports others.
    imports = "".join(f"import_all('cpaan.{name}')\n" for name in (*CORE, *OTHERS))
    code = f"{EVERY_MODULE}sys.modules['pandas'] = None\nimport cpaan\n{imports}"
    names = run(f"{code}print(*{{name.partition('.')[0] for name in sys.modules}} - {{'pandas'}})").split()
    assert {"cpaan", "torch", "sklearn"} <= set(names)
    assert sorted(set(names) & set(OPTIONAL)) == []


def test_the_package_itself_imports_no_library_at_all() -> None:
    names = run("import cpaan, cpaan.cli.app\nprint(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not set(names) & {"torch", "sklearn", "numpy", *OPTIONAL}


@pytest.mark.parametrize(("library", "extra"), EXTRAS.items())
def test_a_missing_library_says_what_to_install(library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"a picture needs {library}: pip install 'cpaan\[{extra}\]'"):
        import_extra(library, "a picture")


def test_every_extra_is_in_the_package() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    _, _, extras = text.partition("[project.optional-dependencies]\n")
    declared = {line.partition(" ")[0] for line in extras.partition("\n[")[0].splitlines() if " = [" in line}
    assert set(EXTRAS.values()) <= declared


PACKAGE_OF = {"sklearn": "scikit-learn", "imblearn": "imbalanced-learn", "PIL": "pillow"}
# With torch for CUDA alone, and of extras that `cpaan.extras` looks after.
NOT_ALWAYS_THERE = {"triton", *EXTRAS, "datasets"}


def imported_by(path: Path) -> set[str]:
    """Name the libraries that a module imports, at once or later."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"cpaan"}


def test_every_library_that_is_imported_is_declared() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    dependencies = project.partition("\ndependencies = [")[2].partition("]")[0]
    declared = set(re.findall(r'"([\w-]+)', dependencies))
    imported = set().union(*(imported_by(path) for path in Path(cpaan.__file__).parent.rglob("*.py")))
    assert {PACKAGE_OF.get(name, name) for name in imported - NOT_ALWAYS_THERE} <= declared
