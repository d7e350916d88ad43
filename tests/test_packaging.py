"""What is built for others: a wheel with the package alone, and a source archive that it can be built from."""

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from cpaan.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cpaan"
STRAY = (".pyc", ".npz", ".safetensors", ".onnx", ".part", ".whl", ".log")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    for library in ("build", "hatchling"):
        if find_spec(library) is None:
            pytest.skip(f"needs {library}: pip install {library}")
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation, which would download the builder.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    ours = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == ours
    assert "cpaan/py.typed" in inside
    assert not [name for name in names if name.endswith(STRAY)]


def test_the_wheel_says_what_it_needs(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        (points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
        metadata = Parser().parsestr(wheel.read(path).decode())
        assert "cpaan = cpaan.cli.app:main" in wheel.read(points).decode()
        assert any(name.endswith("LICENSE") for name in wheel.namelist())
    needed = metadata.get_all("Requires-Dist") or []
    always = {line.split(">")[0].split("[")[0] for line in needed if "extra ==" not in line}
    assert {"numpy", "torch", "scikit-learn", "imbalanced-learn", "safetensors"} <= always
    assert not always & {"matplotlib", "optuna", "onnx", "pyarrow", "huggingface-hub", "pytest", "dask", "pandas"}
    assert {"report", "cluster", "tune", "docs", "dev", "onnx", "parquet", "hub"} <= set(
        metadata.get_all("Provides-Extra") or []
    )


def test_the_source_archive_is_clean(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/cpaan/py.typed",
        "tests/test_packaging.py",
        "conftest.py",
    } <= set(names)
    tops = {name.partition("/")[0] for name in names}
    known = {"src", "tests", "docs", "examples", "benchmarks", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO"}
    known |= {
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "pyproject.toml",
        "conftest.py",
        ".gitignore",
    }
    assert tops <= known
    assert not [name for name in names if name.endswith(STRAY) or "__pycache__" in name]


def test_the_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


def declared() -> dict[str, set[str]]:
    """Give the distributions of every extra of the project, and under "" those that it always needs."""
    _, _, project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[project]\n")
    always, _, extras = project.partition("\n[project.optional-dependencies]\n")
    lists = re.findall(r"^(\w+) = \[(.*?)\]$", extras.partition("\n[")[0], re.MULTILINE | re.DOTALL)
    lists += [("", text) for text in re.findall(r"^dependencies = \[(.*?)^\]$", always, re.MULTILINE | re.DOTALL)]
    return {name: {canonical(each) for each in re.findall(r'"([\w-]+)', text)} for name, text in lists}


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def is_guarded(node: ast.stmt) -> bool:
    """Tell whether what is inside is for mypy alone, or may be missing."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each) for each in node.handlers)


def imports(tree: ast.AST, *, guarded: bool = False) -> Iterator[tuple[str, bool]]:
    """Give every module that is imported, wherever that stands, and whether the import is guarded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, guarded
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = ast.unparse(node.func)
            if function in ("import_extra", "import_module"):
                yield str(node.args[0].value), function == "import_extra"
        yield from imports(node, guarded=guarded or (isinstance(node, ast.stmt) and is_guarded(node)))


def libraries() -> set[tuple[str, bool, str]]:
    """Give the libraries that the package imports, whether that is guarded, and the module that does."""
    known = {*sys.stdlib_module_names, "cpaan"}
    return {
        (name.partition(".")[0], guarded, str(path.relative_to(PACKAGE).with_suffix("")))
        for path in PACKAGE.rglob("*.py")
        for name, guarded in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.partition(".")[0] not in known
    }


def test_every_library_that_is_imported_is_declared() -> None:
    distributions, project = packages_distributions(), declared()

    def is_declared(library: str, extra: str) -> bool:
        return any(canonical(name) in project[extra] for name in distributions.get(library, [library]))

    undeclared = {
        (library, module)
        for library, guarded, module in libraries()
        if not (
            is_declared(library, "")
            # Pandas is in no extra: who asks for a data frame is told its name.
            or (guarded and (library == "pandas" or is_declared(library, EXTRAS.get(library, ""))))
            # Figures import it at once, and nothing but what draws imports them: see tests/test_imports.py.
            or (library == "matplotlib" and module.startswith("reporting/") and is_declared(library, "report"))
            # It comes with torch for CUDA, and kernels are looked for only where it is there.
            or (library == "triton" and module.endswith("_kernels"))
        )
    }
    assert undeclared == set()


def test_every_library_that_is_always_installed_is_imported() -> None:
    distributions = packages_distributions()
    imported = {canonical(name) for library, _, _ in libraries() for name in distributions.get(library, [library])}
    assert declared()[""] <= imported
