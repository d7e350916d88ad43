"""What must work where nothing but cpaan and what it needs is installed; run by `make fresh`."""

import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import numpy as np

import cpaan
from cpaan import CPAAN, FeatureSet, InputError
from cpaan.data import write_features
from cpaan.extras import EXTRAS
from cpaan.gan.recipe import QUICK

installed = [name for name in (*EXTRAS, "pandas") if find_spec(name) is not None]
assert not installed, f"the environment is not fresh: it has {installed}"
assert "site-packages" in cpaan.__file__, f"cpaan is imported from {cpaan.__file__}, not as it was installed"


def missing_library(module: str) -> str:
    """Import a module; where that fails, give the library that it lacks."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        return (error.name or module).partition(".")[0]
    return ""


# Triton comes with torch for CUDA alone; who imports `cpaan.__main__` runs it.
names = [module.name for module in walk_packages(cpaan.__path__, "cpaan.") if module.name != "cpaan.__main__"]
wanting = {name: library for name in names if (library := missing_library(name))}
undeclared = {name: library for name, library in wanting.items() if library not in (*EXTRAS, "triton")}
assert not undeclared, f"modules need what is not installed with cpaan: {undeclared}"
print(f"{len(names) - len(wanting)} of {len(names)} modules need no extra; others: {sorted(set(wanting.values()))}")

rng = np.random.default_rng(0)
X = (5 * rng.normal(size=(8, 1, 5)) + rng.normal(size=(8, 30, 5))).reshape(-1, 5)
y = np.repeat([f"base {index}" for index in range(8)], 30)
shots = rng.normal(size=(2, 5)), ["new", "new"]

augmenter = CPAAN(recipe=QUICK.but(novel_per_episode=4), episodes=20, random_state=0, device="cpu").fit(X, y)
made, labels = augmenter.augment(*shots, per_class=7)
assert made.shape == (7, 5)
assert set(labels) == {"new"}

with tempfile.TemporaryDirectory() as folder:
    augmenter.save(folder)
    assert np.array_equal(CPAAN.load(folder, device="cpu").augment(*shots, per_class=7)[0], made)
    subprocess.run([sys.executable, "-m", "cpaan", "info", folder], check=True)
    refusal = ""
    try:
        write_features(Path(folder) / "bank.parquet", FeatureSet(X, y))
    except InputError as error:
        refusal = str(error)
    assert "pip install 'cpaan[parquet]'" in refusal
print(f"cpaan {cpaan.__version__} works in a fresh environment: {cpaan.__file__}")
