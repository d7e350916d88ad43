"""What is built for others: a wheel with the package alone, and a source archive that it can be built from."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    assert {"pyproject.toml", "README.md", "LICENSE", "src/cpaan/py.typed", "tests/test_packaging.py"} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    known = {"src", "tests", "docs", "examples", "benchmarks", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO"}
    known |= {
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "pyproject.toml",
        ".gitignore",
    }
    assert tops <= known
    assert not [name for name in names if name.endswith(STRAY) or "__pycache__" in name]


def test_the_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
