"""The grid centre × deviations: old cells give what they gave before, and every cell keeps the contract."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imblearn.pipeline import Pipeline
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from cpaan import CPAAN, Anchored, DeviationTransfer, EmpiricalBayes, InputError, NearestPrototype, PooledGaussian
from cpaan.centers import CENTERS, Calibrated, PosteriorMean, ShotMean
from cpaan.deviations import DEVIATIONS, Gaussian, Transfer, Translated
from cpaan.gan.recipe import PAPER, QUICK
from cpaan.methods import Settings, find_method, make_augmenter, set_numbers

Array = NDArray[Any]
TINY: dict[str, Any] = {"episodes": 3, "width": 16, "noise_dimension": 4, "device": "cpu"}
pytestmark = pytest.mark.filterwarnings("ignore:an episode has")


def data(seed: int) -> tuple[Array, Array, Array, Array]:
    """Draw eight base classes, and two shots of one novel class and one of another."""
    rng = np.random.default_rng(seed)
    X = (3 * rng.normal(size=(8, 1, 5)) + rng.normal(size=(8, 10, 5))).reshape(-1, 5)
    return X, np.repeat(np.arange(8), 10), 3 * rng.normal(size=(3, 5)), np.array([8, 8, 9])


def long_tail() -> tuple[Array, Array]:
    rng = np.random.default_rng(100)
    sizes = [20, 18, 16, 22, 19, 3, 2]
    X = np.concatenate([rng.normal(size=(size, 5)) + 3 * rng.normal(size=5) for size in sizes])
    return X, np.repeat(np.arange(7), sizes)


def ends(make: Callable[[int], Any]) -> Array:
    """Give the first and the last example of three seeds, and of a long-tailed set that is filled up."""
    found = []
    for seed in range(3):
        X, y, shots, names = data(seed)
        found.append(make(seed).fit(X, y).augment(shots, names, per_class=3)[0][[0, -1]].ravel())
    X, y = long_tail()
    found.append(make(0).fit_resample(X, y)[0][len(X) :][[0, -1]].ravel())
    return np.stack(found)


# What the classes gave before they were cells of the grid.
TRANSFERRED = {
    "uniform": [
        [
            2.4127538,
            -0.26584411,
            0.94889546,
            4.8391734,
            0.72156042,
            1.6100451,
            1.2193525,
            3.323561,
            0.01851238,
            0.60193394,
        ],
        [
            1.0288525,
            -1.2038546,
            1.088332,
            4.0341102,
            4.9904582,
            1.383578,
            0.6040635,
            0.36005803,
            -1.3973361,
            -1.8584509,
        ],
        [
            -2.2975128,
            3.96237,
            -2.8785864,
            -3.2303366,
            -4.6612895,
            -1.3271146,
            5.9361089,
            -4.8224402,
            -2.4891329,
            -2.7945678,
        ],
        [
            0.65148533,
            0.60997292,
            2.5152479,
            0.059898591,
            0.90969231,
            1.0925769,
            -6.3821438,
            8.5564256,
            3.5072182,
            4.4439128,
        ],
    ],
    "soft": [
        [
            4.713166,
            -0.025191763,
            2.0592598,
            4.3058141,
            1.5045815,
            0.66505419,
            -0.14958299,
            3.2807161,
            -0.77852339,
            -0.9194614,
        ],
        [
            -0.68620486,
            -1.209183,
            1.9915211,
            4.1808387,
            4.1394923,
            2.5597525,
            -0.13646781,
            -0.41450124,
            -0.8185138,
            -2.5932902,
        ],
        [
            -3.2663936,
            1.6535164,
            -3.9056868,
            -3.6789738,
            -2.4859547,
            0.75806116,
            3.9545454,
            -4.7806767,
            -2.6568334,
            -2.04363,
        ],
        [1.6714392, -1.6146766, 2.8087653, 0.05144722, 5.45959, 1.2422145, -4.7778271, 8.0203436, 1.8106252, 4.2300504],
    ],
}
# After three episodes of training; rounding of single precision may differ elsewhere.
TRANSLATED = {
    "paper": [
        [3.6015, -3.3854, -5.0924, 4.7204, 1.6602, 3.5026, -3.9259, -5.3443, 4.6015, 1.3668],
        [-3.4758, -0.99589, 1.9255, 2.4319, -2.3489, -3.3131, -0.99949, 2.2549, 1.7974, -2.8321],
        [-2.9467, 4.2611, 2.1163, 3.5772, 3.0864, -2.91, 4.3086, 2.1509, 3.5378, 3.045],
        [3.5983, -3.2322, -4.7895, 4.7221, 1.6774, 3.4876, -3.3141, -4.7878, 4.8911, 1.7259],
    ],
    "shots": [
        [-0.4731, 0.0022378, -1.174, 0.23042, 0.44626, -0.62825, -0.57012, -1.1232, 0.60674, 0.30767],
        [0.2833, -0.67055, -1.0399, 1.1212, -0.19427, 0.64717, -0.45797, -0.56795, 0.48486, -0.62597],
        [1.6075, 0.73932, 0.24049, -1.5507, -0.44338, 1.7798, 1.1739, 0.14138, -1.7581, -0.74506],
        [1.0724, 0.19876, 0.29302, -0.27924, -0.37652, 1.0683, 0.23795, 0.47926, -0.32681, -0.37831],
    ],
    "plain": [
        [3.2205, -0.30768, 1.1386, 2.7562, 1.3797, 1.2001, 1.7073, 3.755, -0.46406, -1.6048],
        [0.34027, -0.89183, 0.00025295, 1.3832, 1.4416, 2.9365, -0.48601, -0.0014075, -1.7148, -2.7462],
        [-0.47628, 1.0022, -1.3578, -2.5141, -2.1328, 0.63286, 2.8373, -3.0453, -1.8618, -2.2831],
        [1.1353, 0.11012, 0.14749, -0.25493, -0.44047, 1.0623, -2.3895, 4.9959, 1.1083, 1.9781],
    ],
}
# Means of seven examples of each novel class about calibrated centres, which do not depend on the networks.
MEANS = [
    [
        [3.0719035, -0.056381116, 1.140401, 2.9057394, 1.4257901],
        [1.3516709, 1.904019, 3.8900984, -0.57375867, -1.6406193],
    ],
    [
        [0.22622051, -1.0882532, 0.50021771, 1.8448614, 2.1136492],
        [2.9528234, -0.67794421, 0.1048859, -1.778067, -2.6050529],
    ],
    [
        [-1.0424297, 1.5228021, -1.5253299, -2.6893074, -2.5534073],
        [0.46533153, 3.053115, -3.3249454, -1.8361536, -2.3915792],
    ],
]


@pytest.mark.parametrize("neighborhood", list(TRANSFERRED))
def test_deviation_transfer_makes_what_it_made(neighborhood: str) -> None:
    changes: dict[str, Any] = {"soft": {"neighborhood": "soft", "perplexity": 3.0, "reservoir": 4}}.get(
        neighborhood, {}
    )
    found = ends(lambda seed: DeviationTransfer(random_state=seed, **changes))
    np.testing.assert_allclose(found, TRANSFERRED[neighborhood], rtol=1e-6, atol=1e-6)


NETWORKS: dict[str, dict[str, Any]] = {
    "paper": {"recipe": "paper"},
    "shots": {"recipe": "quick", "center": "shots"},
    "plain": {"recipe": "quick", "rounds": 2, "noise": 0.0, "residual_covariance": False, "spread": 0.5},
}


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_networks_make_what_they_made(kind: str) -> None:
    found = ends(lambda seed: set_numbers(CPAAN(), {**TINY, **NETWORKS[kind], "random_state": seed}))
    np.testing.assert_allclose(found, TRANSLATED[kind], rtol=1e-3, atol=1e-3)


def test_the_default_puts_classes_where_it_put_them() -> None:
    for seed, expected in enumerate(MEANS):
        X, y, shots, names = data(seed)
        augmenter = set_numbers(CPAAN(random_state=seed), TINY).fit(X, y)
        made, labels = augmenter.augment(shots, names, per_class=7)
        np.testing.assert_allclose([made[labels == c].mean(0) for c in (8, 9)], expected, rtol=1e-6)


def slow_moments(X: Array, y: Array) -> tuple[Array, Array, Array]:
    """Give class means, Σ_w and Σ_b as they are defined."""
    means = np.stack([X[y == c].mean(0) for c in np.unique(y)])
    deviations = X - means[y]
    within = np.einsum("ni,nj->ij", deviations, deviations) / (len(X) - len(means))
    values, vectors = np.linalg.eigh(np.cov(means.T) - within * np.mean(1 / np.bincount(y)))
    return means, within, vectors @ np.diag(np.maximum(values, 0)) @ vectors.T


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["gaussian", "within", "predictive"])
def test_gaussian_cells_are_draws_about_their_centers(kind: str, seed: int) -> None:
    """With many draws, mean and covariance are those of the formula; with the same seed, draws are the same."""
    X, y, shots, names = data(seed)
    means, within, between = slow_moments(X, y)
    bayes = EmpiricalBayes(random_state=seed, spread=kind) if kind != "gaussian" else None
    augmenter = PooledGaussian(random_state=seed) if bayes is None else bayes
    made, labels = augmenter.fit(X, y).augment(shots, names, per_class=40_000)
    eye = np.eye(5)
    B, W = (S + np.trace(S) / 5 * eye for S in (between, within))  # a ridge of one mean variance
    for c, K in ((8, 2), (9, 1)):
        mean, found = shots[names == c].mean(0), made[labels == c]
        shrink = B @ np.linalg.inv(B + W / K)
        center = mean if bayes is None else means.mean(0) + shrink @ (mean - means.mean(0))
        spread = within + (B - shrink @ B) if kind == "predictive" else within
        size = np.sqrt(np.diag(spread).max())
        np.testing.assert_allclose(found.mean(0), center, atol=0.03 * size)
        np.testing.assert_allclose(np.cov(found.T), spread, atol=0.04 * size**2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gaussian_draws_follow_from_the_seed_as_they_did(seed: int) -> None:
    X, y, shots, names = data(seed)
    _, within, _ = slow_moments(X, y)
    values, vectors = torch.linalg.eigh(torch.tensor(within))
    factor = (vectors * values.clamp_min(0).sqrt()).T
    source = int(np.random.RandomState(seed).randint(2**31 - 1, size=2)[1])
    drawn = torch.randn((6, 5), generator=torch.Generator().manual_seed(source))
    scale = factor.abs().max()
    expected = (drawn @ (factor / scale).float()).double() * scale
    centers = np.stack([shots[:2].mean(0), shots[2]]).repeat(3, axis=0)
    made, _ = PooledGaussian(random_state=seed).fit(X, y).augment(shots, names, per_class=3)
    np.testing.assert_allclose(made - centers, expected.numpy(), rtol=1e-5, atol=1e-5)


CELLS = [f"{center}+{deviations}" for center in CENTERS for deviations in DEVIATIONS]


def build(cell: str, **numbers: Any) -> Any:
    return make_augmenter(cell, Settings(device="cpu", random_state=0, numbers=numbers))


def small(cell: str) -> Any:
    return set_numbers(build(cell), {**TINY, "rounds": 1}, strict=False)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_makes_examples_is_cloned_and_saved(cell: str, tmp_path: Path) -> None:
    X, y, shots, names = data(0)
    augmenter = small(cell)
    assert clone(augmenter).get_params() == augmenter.get_params()
    made, labels = augmenter.fit(X, y).augment(shots, names, per_class=20)
    assert made.shape == (40, 5)
    assert np.isfinite(made).all()
    augmenter.save(tmp_path)
    loaded = type(augmenter).load(tmp_path, device="cpu")
    np.testing.assert_array_equal(loaded.augment(shots, names, per_class=20)[0], made)
    assert loaded.get_params() == augmenter.get_params()
    center, deviations = cell.split("+")
    estimated = augmenter.center_.estimate(augmenter.units_.apply(torch.tensor(shots)), torch.tensor([0, 0, 1]), 2)
    wanted = augmenter.units_.undo(estimated).numpy()
    together = np.stack([np.concatenate([shots[names == c], made[labels == c]]).mean(0) for c in (8, 9)])
    joint = center != "shots" and cell != "posterior+gaussian"
    assert np.allclose(together, wanted, rtol=1e-9) == (joint or cell == "shots+none")
    if deviations == "none":
        spread = made.reshape(2, 20, 5).std(1)
        np.testing.assert_allclose(spread, 0, atol=1e-9)


def test_old_names_are_cells_of_the_grid() -> None:
    X, y, shots, names = data(0)
    same = {
        "gaussian": "shots+gaussian",
        "deviation-transfer": "shots+transfer",
        "empirical-bayes": "posterior+gaussian",
    }
    same |= {"ccov-gan": "calibrated+ccov-gan"}
    for old, cell in same.items():
        one, two = (small(name).fit(X, y).augment(shots, names, per_class=5)[0] for name in (old, cell))
        np.testing.assert_array_equal(one, two)
    grid = Anchored(center=PosteriorMean(), deviations=Gaussian(), random_state=0).fit(X, y)
    bayes = EmpiricalBayes(random_state=0).fit(X, y)
    np.testing.assert_array_equal(grid.augment(shots, names)[0], bayes.augment(shots, names)[0])


def test_parts_are_given_by_name_or_as_objects() -> None:
    augmenter = Anchored(center=Calibrated(rounds=3), deviations="transfer")
    params = augmenter.get_params()
    assert (params["center__rounds"], params["deviations__reservoir"]) == (3, 100)
    changed = clone(augmenter).set_params(center__rounds=2, deviations__perplexity=4.0)
    assert (changed.center, changed.deviations) == (Calibrated(rounds=2), Transfer(perplexity=4.0))
    assert (augmenter.center, augmenter.deviations) == (Calibrated(rounds=3), "transfer")
    assert repr(changed) == "Anchored(center=Calibrated(rounds=2), deviations=Transfer(perplexity=4.0))"
    deep = Anchored(deviations=Translated(recipe="quick"))
    assert deep.get_params()["deviations__recipe__cycle_weight"] == QUICK.cycle_weight
    assert deep.set_params(deviations__recipe__cycle_weight=3.0).deviations.recipe == QUICK.but(cycle_weight=3.0)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="unknown center 'middle'; choose one of shots, posterior, calibrated"):
        Anchored(center="middle").fit(*data(0)[:2])
    with pytest.raises(InputError, match="Calibrated has no turns; it has rounds, noise"):
        augmenter.set_params(center__turns=1)


def test_numbers_of_a_recipe_are_parameters_whether_it_is_named_or_given() -> None:
    assert CPAAN(recipe="paper").get_params()["recipe__cycle_weight"] == PAPER.cycle_weight
    for recipe in ("paper", PAPER):
        augmenter = CPAAN(recipe=recipe).set_params(recipe__cycle_weight=2.0)
        assert augmenter.recipe == PAPER.but(cycle_weight=2.0)
        assert isinstance(augmenter.resolve("center"), ShotMean)  # the recipe's own
    assert PAPER.cycle_weight == 5.0
    assert len(CPAAN().get_params(deep=False)) <= 14
    with pytest.raises(InputError, match="Recipe has no cycle_wait"):
        CPAAN().set_params(recipe__cycle_wait=2.0)
    with pytest.raises(InputError, match="cycle_weight must be a number of at least 0, not -1"):
        CPAAN().set_params(recipe__cycle_weight=-1)


def test_scikit_learn_searches_numbers_of_parts_in_a_pipeline() -> None:
    X, y, _, _ = data(0)
    keep = np.r_[0:72, 70:72]
    pipeline = Pipeline([("augment", small("ccov-gan")), ("classify", NearestPrototype())])
    grid = {"augment__recipe__cycle_weight": [1.0, 50.0], "augment__center__noise": [0.0, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X[keep], y[keep])
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_["augment"].recipe.cycle_weight in (1.0, 50.0)


def test_unknown_methods_name_the_grammar_and_what_is_close() -> None:
    with pytest.raises(InputError, match=r"unknown method 'calibratd\+transfer'; did you mean 'calibrated\+transfer'"):
        find_method("calibratd+transfer")
    with pytest.raises(InputError, match=r"CENTER\+DEVIATIONS, where CENTER is shots, posterior, calibrated"):
        find_method("moon")


def test_a_model_of_one_base_class_is_saved(tmp_path: Path) -> None:
    """The posterior follows the shots; its infinite ratio could not be read again."""
    X, y, shots, names = data(0)
    augmenter = EmpiricalBayes(random_state=0).fit(X[:10], y[:10])
    augmenter.save(tmp_path)
    expected = augmenter.augment(shots, names)[0]
    np.testing.assert_array_equal(EmpiricalBayes.load(tmp_path).augment(shots, names)[0], expected)


def test_the_default_says_how_it_differs_from_the_paper() -> None:
    text = CPAAN.__doc__ or ""
    assert 'CPAAN(recipe="paper")' in text
    for number in ("1e-3", "3,000", "0.163", "perplexity of 5", "rank 64", "calibrated estimate"):
        assert number in text
