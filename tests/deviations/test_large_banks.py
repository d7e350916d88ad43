"""Banks that do not fit in memory: the same models as from memory, and no more memory than blocks take."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cpaan import CPAAN, InputError
from cpaan.deviations import summary
from cpaan.deviations.summary import class_covariances, keep_examples
from cpaan.math import rows
from cpaan.methods import set_numbers
from cpaan.training.bank import ClassBank


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


SETTINGS: dict[str, Any] = {"episodes": 4, "width": 16, "noise_dimension": 4, "device": "cpu", "random_state": 0}
RNG = np.random.default_rng(0)
COUNTS = RNG.integers(5, 40, size=12)
LABELS = np.repeat(np.arange(12), COUNTS)
FEATURES = (4 * RNG.normal(size=(12, 9)))[LABELS] + RNG.normal(size=(len(LABELS), 9))
MIXED = RNG.permutation(len(LABELS))


def tensors_of(augmenter: CPAAN) -> dict[str, torch.Tensor]:
    return augmenter._tensors()


def map_of(folder: Path, features: NDArray[Any]) -> NDArray[Any]:
    np.save(folder / "bank.npy", features)
    found: NDArray[Any] = np.load(folder / "bank.npy", mmap_mode="r")
    return found


@pytest.fixture
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_NUMBERS_AT_ONCE", 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", [np.arange(len(LABELS)), MIXED], ids=["sorted", "mixed"])
def test_a_mapped_bank_trains_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, order: Any
) -> None:
    X, y = FEATURES[order].astype(dtype), LABELS[order]
    resident = cpaan(**SETTINGS).fit(X, y)
    monkeypatch.setattr(rows, "MOST_NUMBERS_AT_ONCE", 0)
    mapped = cpaan(**SETTINGS).fit(map_of(tmp_path, X), y)
    assert mapped.model_.temperature == resident.model_.temperature
    assert mapped.units_.factor == resident.units_.factor
    for name, tensor in tensors_of(resident).items():
        assert torch.equal(tensors_of(mapped)[name], tensor), name
    shots = FEATURES[:3] + 20, ["new"] * 3
    np.testing.assert_array_equal(mapped.augment(*shots)[0], resident.augment(*shots)[0])


@pytest.mark.usefixtures("nothing_fits")
def test_blocks_change_the_mean_by_rounding_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = map_of(tmp_path, FEATURES[MIXED])
    whole = cpaan(**SETTINGS).fit(X, LABELS[MIXED])
    monkeypatch.setattr(rows, "NUMBERS_IN_BLOCK", 50)
    parts = cpaan(**SETTINGS).fit(X, LABELS[MIXED])
    torch.testing.assert_close(parts.units_.origin, whole.units_.origin, rtol=1e-13, atol=0)
    torch.testing.assert_close(parts.model_.base.prototypes, whole.model_.base.prototypes)


@pytest.mark.usefixtures("nothing_fits")
def test_training_directly_reads_both_sets_as_they_are_needed(tmp_path: Path) -> None:
    X = map_of(tmp_path, FEATURES)
    augmenter = cpaan(**SETTINGS).fit_direct(X, LABELS, FEATURES[:20] + 9, ["new"] * 20)
    assert np.isfinite(augmenter.augment(FEATURES[:20] + 9, ["new"] * 20, per_class=5)[0]).all()


@pytest.mark.usefixtures("nothing_fits")
def test_a_bank_that_is_cut_off_while_training_ends_with_its_name(tmp_path: Path) -> None:
    X = map_of(tmp_path, FEATURES)

    def cut(_: object) -> None:
        (tmp_path / "bank.npy").write_bytes(b"")

    with pytest.raises(InputError, match=r"bank\.npy has 0 bytes"):
        cpaan(tell=cut, **SETTINGS).fit(X, LABELS)


def bank_of(n_classes: int, per_class: int, dimension: int) -> ClassBank:
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, dimension + 1) ** -0.5
    examples = torch.randn(n_classes * per_class - 3, dimension, generator=generator) * spectrum
    return ClassBank.from_examples(examples, torch.arange(len(examples)) // per_class, n_classes)


@pytest.mark.parametrize("shape", [(7, 200, 100), (7, 80, 100), (4, 30, 100)])
@pytest.mark.parametrize("rank", [8, "full"])
def test_quick_covariances_of_many_classes_are_all_but_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], rank: int | str
) -> None:
    bank = bank_of(*shape)
    exact = class_covariances(bank, rank)
    monkeypatch.setattr(summary, "MOST_EXACT", 0.0)
    quick = class_covariances(bank, rank)
    assert torch.equal(quick.variances, exact.variances)
    if rank == "full":
        assert torch.equal(quick.factors, exact.factors)
    shares = quick.factors.square().sum((1, 2)) / exact.factors.square().sum((1, 2))
    assert shares.min() > 0.999
    assert shares.max() < 1 + 1e-5
    assert (quick.tails >= exact.tails - 1e-6).all()


def test_tails_and_factors_make_up_the_variance() -> None:
    bank = bank_of(5, 60, 40)
    found = class_covariances(bank, 6)
    for label in range(5):
        slow = np.cov(bank.of_class(label).double().numpy().T, bias=True)
        np.testing.assert_allclose(found.variances[label], np.trace(slow), rtol=1e-5)
        left = np.linalg.eigvalsh(slow)[:-6].sum() / 40
        np.testing.assert_allclose(found.tails[label], left, rtol=1e-4)


def test_kept_examples_are_distinct_deviations_of_their_class() -> None:
    bank = bank_of(5, 20, 4)
    kept = keep_examples(bank, 18, torch.Generator().manual_seed(0))
    assert kept is not None
    assert kept.counts.tolist() == [18, 18, 18, 18, 17]
    for label in range(5):
        real = (bank.of_class(label) - bank.prototypes[label]).half()
        same = (kept.of_class(label).unsqueeze(1) == real.unsqueeze(0)).all(2)
        assert (same.sum(1) == 1).all()
        assert (same.sum(0) <= 1).all()


MEASURE = """
import sys
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(1)
from cpaan import CPAAN
from cpaan.deviations import summary
from cpaan.gan.recipe import DEFAULT
from cpaan.data import memory_map
from cpaan.math import rows

rows.MOST_NUMBERS_AT_ONCE, memory_map.KEPT_BYTES, summary.MOST_EXACT = 2**20, 2**24, 0.0

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))

bank, labels = np.load(sys.argv[1], mmap_mode="r"), np.arange(80 * 250) % 80
# The search for centres holds a sample of at most 2²⁴ numbers whatever the bank's size, and the score on held-out
# classes 2²³, which would hide the rest here.
settings = dict(center="shots", held_out=0.0, episodes=2, reservoir=5, recipe=DEFAULT.but(width=16, covariance_rank=8))
settings |= dict(device="cpu", random_state=0)
CPAAN(**settings).fit(bank[:4000], labels[:4000] % 20)
before = peak()
CPAAN(**settings).fit(bank, labels)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell resident memory")
def test_memory_stays_far_below_what_a_copy_takes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((250, 2048), dtype=np.float32).astype(np.float16)
    with (tmp_path / "bank.npy").open("xb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (80 * 250, 2048)}
        np.lib.format.write_array_header_1_0(file, header)
        for label in range(80):
            file.write((noise + np.float16(label / 40)).data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "bank.npy")]
    grown = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    # Megabytes: one copy in single precision would take 156, one in double precision 313.
    assert grown < 120
