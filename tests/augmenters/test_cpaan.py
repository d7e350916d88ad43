"""The augmenter's contract: types, reproducibility, files, and wrong input."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone

from cpaan import CPAAN, InputError
from cpaan.augmenters.base import small_classes
from cpaan.centers import Calibrated, ShotMean
from cpaan.gan.objective import VARIANTS
from cpaan.gan.recipe import RECIPES
from cpaan.methods import set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


TINY: dict[str, Any] = {"episodes": 3, "width": 16, "noise_dimension": 4, "device": "cpu"}


def gaussian_classes(
    n_classes: int, per_class: int, dimension: int = 6, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 1, dimension))
    X = (centers + rng.normal(size=(n_classes, per_class, dimension))).reshape(-1, dimension)
    return X, np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


def parameters(augmenter: CPAAN) -> dict[str, Any]:
    found: dict[str, Any] = augmenter.get_params()
    return found


BASE = gaussian_classes(8, 20)
NOVEL = gaussian_classes(3, 2, seed=1)


@pytest.fixture(scope="module")
def fitted() -> CPAAN:
    return cpaan(random_state=0, **TINY).fit(*BASE)


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("generator", ["plain", "residual"])
def test_every_variant_fills_classes_up_to_the_base_average(variant: str, generator: str) -> None:
    augmenter = cpaan(variant=variant, generator=generator, random_state=0, **TINY).fit(*BASE)
    X, y = augmenter.augment(*NOVEL)
    assert X.shape == (3 * 18, 6)
    assert np.isfinite(X).all()
    assert {name: int((y == name).sum()) for name in np.unique(y)} == {"1-0": 18, "1-1": 18, "1-2": 18}


@pytest.mark.parametrize("settings_", [{"neighborhood": "hard", "neighbors": 2}, {"neighborhood": "uniform"}])
@pytest.mark.parametrize("pairing", [{"pairing": "all", "base_draw": "uniform"}, {"base_draw": "uniform"}])
def test_every_neighborhood_trains_with_every_pairing(settings_: dict[str, Any], pairing: dict[str, Any]) -> None:
    augmenter = cpaan(random_state=0, **TINY, **settings_, **pairing, loss_weights="literal").fit(*BASE)
    assert np.isfinite(augmenter.augment(*NOVEL)[0]).all()
    assert all(np.isfinite(losses).all() for losses in augmenter.history_.values())


def test_the_paper_recipe_runs_with_its_own_numbers() -> None:
    X, y = gaussian_classes(41, 12)
    augmenter = cpaan(recipe="paper", episodes=2, random_state=0, device="cpu").fit(X, y)
    model = augmenter.model_
    assert model.networks.novel_generator.hidden.weight.shape == (512, 512)
    assert (model.temperature, model.recipe.novel_per_episode, model.recipe.pairing) == (1.0, 20, "all")
    assert np.isfinite(augmenter.augment(*NOVEL)[0]).all()


def test_an_untrained_residual_generator_transfers_deviations() -> None:
    """A property that a wrong scale, prototype or class would break: x_b − l_b + l_n, with x_b a base example."""
    X, y = BASE
    augmenter = cpaan(
        variant="c-gan", generator="residual", center="shots", random_state=0, learning_rate=1e-12, **TINY
    )
    augmenter.fit(X, y)
    made, names = augmenter.augment(*NOVEL)
    for name in np.unique(names):
        shift = NOVEL[0][NOVEL[1] == name].mean(0)
        deviations = np.concatenate([X[y == c] - X[y == c].mean(0) for c in np.unique(y)])
        for example in made[names == name]:
            assert np.abs(deviations - (example - shift)).max(1).min() < 0.02


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones() -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed + 17)  # the global state must not matter
        np.random.seed(seed + 18)  # noqa: NPY002
        runs.append(cpaan(random_state=seed, **TINY).fit(*BASE).augment(*NOVEL)[0])
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_training_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    cpaan(random_state=0, **TINY).fit(*BASE)
    assert torch.equal(before, torch.random.get_rng_state())


def test_parameters_are_stored_as_given_and_cloned() -> None:
    augmenter = cpaan(variant="c-gan", episodes=7, random_state=5)
    assert parameters(clone(augmenter)) == parameters(augmenter)


def test_per_class_asks_for_a_number(fitted: CPAAN) -> None:
    assert len(fitted.augment(*NOVEL, per_class=7)[0]) == 21
    with pytest.raises(InputError, match="per_class must be a whole number of at least 1, not 0"):
        fitted.augment(*NOVEL, per_class=0)


def test_classes_larger_than_the_average_base_class_get_nothing(fitted: CPAAN) -> None:
    X, y = gaussian_classes(1, 40, seed=2)
    made, names = fitted.augment(X, y)
    assert made.shape == (0, 6)
    assert len(names) == 0


def test_what_comes_out_has_the_type_that_went_in(fitted: CPAAN) -> None:
    X, y = NOVEL
    made, names = fitted.augment(torch.tensor(X, dtype=torch.float32), torch.tensor([3, 3, 4, 4, 9, 9]))
    assert made.dtype == torch.float32
    assert sorted(set(names.tolist())) == [3, 4, 9]
    pandas: Any = pytest.importorskip("pandas")
    columns = [f"f{i}" for i in range(6)]
    made, names = fitted.augment(pandas.DataFrame(X, columns=columns), pandas.Series(y, name="kind"))
    assert list(made.columns) == columns
    assert names.name == "kind"
    polars: Any = pytest.importorskip("polars")
    made, names = fitted.augment(polars.DataFrame(X, schema=columns), polars.Series("kind", y))
    assert isinstance(made, polars.DataFrame)
    assert made.columns == columns
    made, names = fitted.augment(X.astype(np.float16), [("a", 1)] * 3 + [("b", 2)] * 3)
    assert made.dtype == np.float16
    assert set(names) == {("a", 1), ("b", 2)}


def test_direct_training_needs_no_number_of_base_classes() -> None:
    X, y = gaussian_classes(2, 30)
    augmenter = cpaan(random_state=0, **TINY).fit_direct(X, y, *NOVEL)
    assert augmenter.augment(*NOVEL)[0].shape == (3 * 28, 6)


def test_too_few_base_classes_are_refused_and_the_way_out_named() -> None:
    with pytest.raises(InputError, match=r"at least 4 base classes, and there are 3.*fit_direct"):
        cpaan(**TINY).fit(*gaussian_classes(3, 10))


def test_fewer_meta_novel_classes_than_asked_for_are_told() -> None:
    with pytest.warns(UserWarning, match="2 meta-novel classes instead of 10"):
        cpaan(random_state=0, **TINY).fit(*gaussian_classes(5, 10))


def test_fit_resample_keeps_what_is_there_and_fills_small_classes() -> None:
    X, y = BASE
    X_all, y_all = np.concatenate([X, NOVEL[0]]), np.concatenate([y, NOVEL[1]])
    X_new, y_new = cpaan(random_state=0, **TINY).fit_resample(X_all, y_all)
    assert np.array_equal(X_new[: len(X_all)], X_all)
    assert list(y_new[: len(y_all)]) == list(y_all)
    assert {int((y_new == name).sum()) for name in np.unique(y_new)} == {20}


def test_fit_resample_trains_directly_on_few_classes_and_leaves_balanced_sets_alone() -> None:
    X, y = gaussian_classes(2, 40)
    rows = np.r_[0:40, 40:45]
    with pytest.warns(UserWarning, match="training directly"):
        _, y_new = cpaan(random_state=0, **TINY).fit_resample(X[rows], y[rows])
    assert int((y_new == "0-1").sum()) == 40
    same, _ = cpaan(random_state=0, **TINY).fit_resample(X, y)
    assert np.array_equal(same, X)


def test_small_classes_do_not_hide_behind_their_number() -> None:
    counts = np.array([100] * 10 + [1] * 1000)
    assert small_classes(counts).sum() == 1000


@pytest.mark.parametrize("reservoir", [0, 5, 100])
@pytest.mark.parametrize("variant", ["c-gan", "cdeli-gan"])
def test_a_saved_model_makes_the_same_examples(tmp_path: Path, reservoir: int, variant: str) -> None:
    augmenter = cpaan(variant=variant, reservoir=reservoir, random_state=0, **TINY).fit(*BASE)
    augmenter.save(tmp_path / "model")
    loaded = CPAAN.load(tmp_path / "model", device="cpu")
    assert np.array_equal(loaded.augment(*NOVEL)[0], augmenter.augment(*NOVEL)[0])
    assert loaded.history_ == augmenter.history_
    assert parameters(loaded) == parameters(augmenter)
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_without_a_reservoir_no_base_example_is_saved(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    cpaan(reservoir=0, random_state=0, **TINY).fit(*BASE).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert not any(name.startswith("reservoir") for name in tensors)
    assert tensors["base.prototypes"].shape == (8, 6)


def test_gaussian_summaries_have_the_moments_of_their_class(tmp_path: Path) -> None:
    X, y = gaussian_classes(8, 200)
    augmenter = cpaan(reservoir=0, random_state=0, covariance_rank=3, **TINY).fit(X, y)
    base = augmenter.model_.base
    drawn = base.draw(torch.zeros(20_000, dtype=torch.long), torch.Generator().manual_seed(0)).double()
    found = augmenter.units_.undo(drawn).numpy()
    real = X[y == "0-0"]
    np.testing.assert_allclose(found.mean(0), real.mean(0), atol=0.1)
    assert np.trace(np.cov(found.T)) == pytest.approx(np.trace(np.cov(real.T, bias=True)), rel=0.03)
    values, vectors = np.linalg.eigh(np.cov(real.T, bias=True))
    for i in (3, 4, 5):  # the three leading directions are kept exactly, the others as their average
        kept = vectors[:, i] @ np.cov(found.T) @ vectors[:, i]
        assert kept == pytest.approx(values[i] + values[:3].sum() / 6, rel=0.06)


@pytest.mark.parametrize("name", [("a", 1), 3, 2.5, True, "text"])
def test_names_survive_saving(tmp_path: Path, name: Any) -> None:
    X, _ = BASE
    names = [name if i < 20 else ("other", i // 20) for i in range(len(X))]
    cpaan(random_state=0, **TINY).fit(X, names).save(tmp_path)
    loaded = CPAAN.load(tmp_path, device="cpu")
    assert name in loaded.classes_
    with pytest.raises(InputError, match="both base and novel"):
        loaded.augment(X[:2], [name, name])


def test_names_that_json_cannot_hold_are_refused_with_nothing_written(tmp_path: Path) -> None:
    X, y = BASE
    augmenter = cpaan(random_state=0, **TINY).fit(X, [frozenset([name]) for name in y])
    with pytest.raises(InputError, match="names must be text, numbers"):
        augmenter.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_damaged_models_are_recognised(tmp_path: Path, fitted: CPAAN) -> None:
    whole = tmp_path / "whole"
    fitted.save(whole)
    content = (whole / "model.safetensors").read_bytes()
    config = json.loads((whole / "config.json").read_text())
    damages: dict[str, Callable[[Path], object]] = {
        "truncated or damaged": lambda f: (f / "model.safetensors").write_bytes(content[:-100]),
        "no readable model.safetensors": lambda f: (f / "model.safetensors").unlink(),
        "it has no readable config.json": lambda f: (f / "config.json").unlink(),
        "config.json is not JSON": lambda f: (f / "config.json").write_text('{"format": '),
        "of another kind": lambda f: (f / "config.json").write_text('{"format": "other"}'),
        "format version 99": lambda f: (f / "config.json").write_text(json.dumps({**config, "format_version": 99})),
    }
    for number, (message, damage) in enumerate(damages.items()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        damage(folder)
        with pytest.raises(InputError, match=message):
            CPAAN.load(folder)
    with pytest.raises(InputError, match="does not exist"):
        CPAAN.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a file"):
        CPAAN.load(whole / "config.json")


def test_wrong_input_is_refused_by_name(fitted: CPAAN) -> None:
    X, y = NOVEL
    bad = X.copy()
    bad[1, 2] = np.nan
    with pytest.raises(InputError, match=r"NaN or infinite in row.* 1"):
        fitted.augment(bad, y)
    with pytest.raises(InputError, match="5 dimensions and base features 6"):
        fitted.augment(X[:, :5], y)
    with pytest.raises(InputError, match="both base and novel: '0-0'"):
        fitted.augment(X, ["0-0"] * 6)
    with pytest.raises(InputError, match="choose one of c-gan, ccyc-gan, cdeli-gan, ccov-gan"):
        cpaan(variant="gan").fit(*BASE)
    with pytest.raises(InputError, match="random_state cannot be -1"):
        cpaan(random_state=-1, **TINY).fit(*BASE)
    with pytest.raises(InputError, match="reservoir must be"):
        cpaan(reservoir=-1, **TINY).fit(*BASE)
    with pytest.raises(InputError, match="cannot use the device"):
        cpaan(**{**TINY, "device": "abacus"}).fit(*BASE)
    with pytest.raises(InputError, match="label"):
        fitted.augment(X, y[:-1])
    unfitted = CPAAN()
    with pytest.raises(Exception, match="not fitted"):
        unfitted.augment(X, y)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e20]),
    offset=st.sampled_from([0.0, 100.0]),
    per_class=st.integers(1, 6),
    dimension=st.sampled_from([1, 2, 30]),
    kind=st.sampled_from(["spread", "constant", "duplicated"]),
)
def test_odd_features_give_finite_examples(
    scale: float, offset: float, per_class: int, dimension: int, kind: str
) -> None:
    X, y = gaussian_classes(6, per_class, dimension)
    if kind == "constant":
        X = np.ones_like(X)
    if kind == "duplicated":
        X = np.repeat(X[::per_class], per_class, axis=0)
    X = (X + offset) * scale
    augmenter = cpaan(random_state=0, novel_per_episode=3, batch_size=60, **TINY).fit(X, y)
    made, _ = augmenter.augment(X[:2], ["new", "new"], per_class=5)
    assert made.shape == (5, dimension)
    assert np.isfinite(made).all()
    assert all(np.isfinite(losses).all() for losses in augmenter.history_.values())


def test_real_and_synthetic_examples_together_have_their_mean_at_the_center(fitted: CPAAN) -> None:
    X, y = NOVEL
    scaled = fitted.units_.apply(torch.tensor(X))
    centers = fitted.center_.estimate(scaled, torch.arange(3).repeat_interleave(2), 3)
    wanted = fitted.units_.undo(centers).numpy()
    for per_class in (None, 1, 7):
        made, names = fitted.augment(X, y, per_class=per_class)
        for c, name in enumerate(np.unique(y)):
            together = np.concatenate([X[y == name], made[names == name]])
            np.testing.assert_allclose(together.mean(0), wanted[c], rtol=1e-9)


def test_classes_of_different_sizes_each_get_their_own_center(fitted: CPAAN) -> None:
    X, y = gaussian_classes(3, 25, seed=1)
    rows = np.r_[0:1, 25:28, 50:75]  # one, three, and more than a base class has
    made, names = fitted.augment(X[rows], y[rows])
    assert {name: int((names == name).sum()) for name in np.unique(y)} == {"1-0": 19, "1-1": 17, "1-2": 0}
    assert np.isfinite(made).all()


def test_examples_vary_more_the_less_is_known_of_their_class(fitted: CPAAN) -> None:
    X, y = gaussian_classes(1, 20, seed=1)
    little_known = copy.copy(fitted)
    center = copy.copy(fitted.center_)
    assert isinstance(center, Calibrated)
    assert center.constants_.ridge <= 1  # base classes tell enough here
    center.constants_ = replace(center.constants_, ridge=30.0)
    little_known.center_ = center

    def variances(augmenter: CPAAN) -> list[float]:
        made = [augmenter.augment(X[:k], y[:k], per_class=400)[0] for k in (1, 20)]
        return [float(np.trace(np.cov(examples.T))) for examples in made]

    one, many = variances(little_known)
    assert one > 1.2 * many
    one, many = variances(fitted)
    assert one == pytest.approx(many, rel=0.05)


@pytest.mark.parametrize("center", ["shots", "calibrated"])
def test_spread_multiplies_deviations_and_moves_no_mean(center: str) -> None:
    made = {}
    for spread in (0.5, 1.0, 2.0):
        augmenter = cpaan(center=center, spread=spread, random_state=0, **TINY).fit(*BASE)
        X, y = augmenter.augment(*NOVEL)
        made[spread] = [X[y == name] for name in np.unique(y)]
    for half, one, two in zip(*made.values(), strict=True):
        np.testing.assert_allclose(two.mean(0), one.mean(0), atol=1e-4)
        np.testing.assert_allclose(two - two.mean(0), 2 * (one - one.mean(0)), atol=1e-4)
        np.testing.assert_allclose(half - half.mean(0), 0.5 * (one - one.mean(0)), atol=1e-4)


def test_the_paper_recipe_stays_at_the_shots() -> None:
    """As printed: the generator gets the mean of the shots, and what it makes is not moved."""
    X, y = BASE
    augmenter = cpaan(
        recipe="paper", novel_per_episode=3, batch_size=60, random_state=0, **TINY | {"shots_per_episode": 5}
    )
    augmenter.fit(X, y)
    model = augmenter.model_
    assert isinstance(augmenter.center_, ShotMean)
    assert augmenter.expected_gain_ is None
    shots = torch.tensor(np.stack([NOVEL[0][i : i + 2].mean(0) for i in (0, 2, 4)]))
    generator = torch.Generator().manual_seed(augmenter._seed(1))
    made = model.make(augmenter.units_.apply(shots).float(), torch.tensor([18, 18, 18]), generator)
    np.testing.assert_array_equal(augmenter.augment(*NOVEL)[0], augmenter.units_.undo(made.double()).numpy())


def test_direct_training_stays_at_the_shots() -> None:
    augmenter = cpaan(random_state=0, **TINY).fit_direct(*BASE, *NOVEL)
    assert isinstance(augmenter.center_, ShotMean)


def test_default_is_quick_with_more_of_everything() -> None:
    assert CPAAN().recipe == "default"
    assert CPAAN().resolve("center") == Calibrated(rounds=5)
    assert CPAAN(recipe="quick").resolve("center") == Calibrated(rounds=3)
    assert RECIPES["default"].episodes > RECIPES["quick"].episodes
    with pytest.raises(InputError, match="unknown center 'moon'; choose one of shots, posterior, calibrated"):
        CPAAN(center="moon").fit(*BASE)


def test_the_expected_gain_is_told_and_saved(tmp_path: Path, fitted: CPAAN) -> None:
    gain = fitted.expected_gain_
    assert gain is not None
    assert set(gain) == {"shots", "lsl", "glsl"}
    assert gain["shots"] == (1, 2, 5, 10)  # classes of 20 examples cannot spare 20
    for pairs in (gain["lsl"], gain["glsl"]):
        assert len(pairs) == 4
        assert all(np.isfinite(pair).all() and len(pair) == 2 for pair in pairs)
    fitted.save(tmp_path)
    loaded = CPAAN.load(tmp_path, device="cpu")
    assert loaded.expected_gain_ == gain
    assert isinstance(loaded.center_, Calibrated)
    assert isinstance(fitted.center_, Calibrated)
    assert loaded.center_.constants_ == fitted.center_.constants_


def test_few_base_classes_still_have_centers_but_promise_nothing() -> None:
    with pytest.warns(UserWarning, match="meta-novel"):
        augmenter = cpaan(random_state=0, **TINY).fit(*gaussian_classes(5, 10))
    assert isinstance(augmenter.center_, Calibrated)
    assert augmenter.expected_gain_ is None
    assert np.isfinite(augmenter.augment(*NOVEL)[0]).all()
