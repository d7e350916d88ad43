"""Feature Hallucination: that it learns analogies, and keeps an augmenter's contract."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpaan.augmenters.feature_hallucination import AnalogyData, FeatureHallucination, analogy_losses
from cpaan.errors import InputError
from cpaan.methods import Settings, find_method, load_augmenter

TINY: dict[str, Any] = {"centroids": 5, "iterations": 20, "width": 16, "device": "cpu"}


def gaussian_classes(
    n_classes: int, per_class: int, dimension: int = 6, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(n_classes, 1, dimension))
    X = (centers + rng.normal(size=(n_classes, per_class, dimension))).reshape(-1, dimension)
    return X, np.repeat([f"{seed}-{i}" for i in range(n_classes)], per_class)


BASE = gaussian_classes(8, 20)
NOVEL = gaussian_classes(3, 2, seed=1)


@pytest.fixture(scope="module")
def fitted() -> FeatureHallucination:
    return FeatureHallucination(random_state=0, **TINY).fit(*BASE)


@pytest.fixture(scope="module")
def transformed() -> tuple[FeatureHallucination, NDArray[np.float64], NDArray[np.float64]]:
    """Classes that come in the same five versions: what an analogy must give is known."""
    rng = np.random.default_rng(0)
    versions = 2 * rng.normal(size=(5, 8))
    centers = 3 * rng.normal(size=(60, 1, 1, 8))
    X = (centers + versions[:, None] + 0.05 * rng.normal(size=(60, 5, 4, 8))).reshape(-1, 8)
    augmenter = FeatureHallucination(
        random_state=0, centroids=5, iterations=1000, reduce_every=600, learning_rate=0.3, width=128, device="cpu"
    )
    return augmenter.fit(X, np.repeat(np.arange(60), 20)), versions, 3 * rng.normal(size=(20, 8))


def test_it_completes_analogies_whose_answer_is_known(
    transformed: tuple[FeatureHallucination, NDArray[np.float64], NDArray[np.float64]],
) -> None:
    """x in version v, and any C → D, must land on x in a version of the same class: B = A + (D − C) where that fits."""
    augmenter, versions, centers = transformed
    seeds = centers + versions[0]
    made, names = augmenter.augment(seeds, [f"new {i:02}" for i in range(20)], per_class=200)
    made = made.reshape(20, 200, 8)
    assert names[0] == "new 00"
    jumps = (versions[:, None] - versions[None]).reshape(-1, 8)[~np.eye(5, dtype=bool).ravel()]
    # Every example is x plus one of the 20 transformations; random pairing of x and example would be far off.
    right = _distance_to_nearest(made - seeds[:, None], jumps)
    wrong = _distance_to_nearest(made - np.roll(seeds, 1, axis=0)[:, None], jumps)
    size = np.linalg.norm(jumps, axis=1).mean()
    assert right < 0.35 * size
    assert right < 0.4 * wrong


def _distance_to_nearest(found: NDArray[Any], points: NDArray[Any]) -> float:
    return float(np.linalg.norm(found.reshape(-1, 1, 8) - points, axis=2).min(1).mean())


def test_it_applies_the_very_transformation_that_it_is_shown(
    transformed: tuple[FeatureHallucination, NDArray[np.float64], NDArray[np.float64]],
) -> None:
    augmenter, versions, centers = transformed
    scaling, network = augmenter.scaling_, augmenter.hallucinator_

    def complete(a: NDArray[Any], c: NDArray[Any], d: NDArray[Any]) -> NDArray[Any]:
        A, C, D = (scaling.apply(torch.tensor(each)).float() for each in (a, c, d))
        found: NDArray[Any] = scaling.undo(network(A, C, D).double()).numpy()
        return found

    others = np.roll(centers, 3, axis=0)
    size = np.linalg.norm(versions[1] - versions[0])
    errors = {
        target: np.linalg.norm(
            complete(centers + versions[0], others + versions[0], others + versions[1]) - (centers + versions[target]),
            axis=1,
        ).mean()
        for target in range(5)
    }
    assert errors[1] < 0.4 * size
    assert errors[1] == min(errors.values())


def test_both_terms_of_the_loss_fall() -> None:
    losses = FeatureHallucination(random_state=0, **{**TINY, "iterations": 300}).fit(*BASE).history_
    assert losses["classification"][-1] < 0.2 * losses["classification"][0]
    assert losses["error"][-1] < 0.5 * losses["error"][0]
    assert losses["loss"][-1] == pytest.approx(losses["classification"][-1] + 10 * losses["error"][-1], rel=1e-5)


def test_the_loss_is_what_its_formula_says(fitted: FeatureHallucination) -> None:
    rng = np.random.default_rng(0)
    centroids, weight, bias = rng.normal(size=(9, 6)), rng.normal(size=(3, 6)), rng.normal(size=3)
    quadruplets = np.array([[0, 1, 4, 5], [3, 5, 8, 6]])
    data = AnalogyData(
        torch.tensor(centroids).float(),
        torch.arange(3).repeat_interleave(3),
        torch.tensor(quadruplets),
        torch.tensor(weight).float(),
        torch.tensor(bias).float(),
    )
    found = analogy_losses(fitted.hallucinator_, data, data.quadruplets, error_weight=7.0)
    expected = []
    for (a, b, c, d), label in zip(quadruplets, (0, 1), strict=True):
        inputs = torch.tensor(np.stack([centroids[a], centroids[c], centroids[d]])).float()
        made = fitted.hallucinator_(*inputs).numpy().astype(np.float64)
        scores = weight @ made + bias
        expected.append((np.log(np.exp(scores).sum()) - scores[label], ((made - centroids[b]) ** 2).mean()))
    classification, error = np.mean(expected, axis=0)
    assert float(found["classification"]) == pytest.approx(classification, rel=1e-4)
    assert float(found["error"]) == pytest.approx(error, rel=1e-4)
    assert float(found["loss"]) == pytest.approx(classification + 7 * error, rel=1e-4)


def test_the_classification_term_keeps_examples_in_their_class() -> None:
    """Trained on the error alone, G makes examples that the base classifier finds less typical of their class."""
    X, y = gaussian_classes(12, 20)
    found = []
    for classifier_counts in (True, False):
        augmenter = FeatureHallucination(random_state=0, error_weight=1.0, **{**TINY, "iterations": 400, "width": 32})
        with pytest.MonkeyPatch.context() as patch:
            if not classifier_counts:
                patch.setattr("cpaan.augmenters.feature_hallucination.analogy_losses", _error_alone)
            augmenter.fit(X, y)
        found.append([float(np.mean(augmenter.history_[term][-20:])) for term in ("classification", "error")])
    (classified, error), (unclassified, least_error) = found
    assert classified < 0.4 * unclassified
    assert error > least_error


def _error_alone(network: Any, data: Any, quadruplets: Any, error_weight: float) -> dict[str, torch.Tensor]:
    terms = analogy_losses(network, data, quadruplets, error_weight)
    return {**terms, "loss": error_weight * terms["error"]}


@pytest.mark.parametrize(
    ("shift", "rectify", "expected"), [(100.0, "auto", True), (0.0, "auto", False), (0.0, True, True)]
)
def test_examples_are_never_negative_where_rectified(shift: float, rectify: Any, expected: bool) -> None:
    X, y = BASE
    augmenter = FeatureHallucination(rectify=rectify, random_state=0, **TINY).fit(X + shift, y)
    made, _ = augmenter.augment(NOVEL[0] + shift, NOVEL[1])
    assert augmenter.rectified_ is expected
    assert bool((made >= 0).all()) is expected


def test_rectified_features_have_exact_zeros() -> None:
    """What a ReLU leaves at zero stays there; without the last ReLU it would be a little above or below."""
    X, y = np.maximum(BASE[0], 0), BASE[1]
    share = []
    for rectify in ("auto", False):
        augmenter = FeatureHallucination(rectify=rectify, random_state=0, **{**TINY, "iterations": 300}).fit(X, y)
        made, _ = augmenter.augment(np.maximum(NOVEL[0], 0), NOVEL[1])
        share.append(float((made == 0).mean()))
    assert share[0] > 0.1
    assert share[1] == 0


def test_fill_to_and_per_class_say_how_many() -> None:
    augmenter = FeatureHallucination(fill_to=10, random_state=0, **TINY).fit(*BASE)
    assert len(augmenter.augment(*NOVEL)[0]) == 3 * 8
    assert len(augmenter.augment(*NOVEL, per_class=4)[0]) == 3 * 4
    for fill_to, wanted in ((1, 0), (None, 3 * 18)):
        augmenter.fill_to = fill_to
        assert len(augmenter.augment(*NOVEL)[0]) == wanted
    augmenter.fill_to = np.int64(5)  # type: ignore[assignment]
    assert len(augmenter.augment(*NOVEL)[0]) == 3 * 3
    augmenter.fill_to = 0
    with pytest.raises(InputError, match="fill_to must be a whole number of at least 1, not 0"):
        augmenter.augment(*NOVEL)


def test_the_benchmark_fills_classes_up_to_the_published_number() -> None:
    make = find_method("feature-hallucination").augmenter
    assert make is not None
    augmenter: Any = make(Settings(recipe="paper", random_state=3))
    assert (augmenter.fill_to, augmenter.recipe, augmenter.random_state) == (20, "paper", 3)


def test_a_saved_model_makes_the_same_examples(tmp_path: Path, fitted: FeatureHallucination) -> None:
    rectified = FeatureHallucination(rectify=True, random_state=0, **TINY).fit(*BASE)
    for name, augmenter in {"plain": fitted, "rectified": rectified}.items():
        augmenter.save(tmp_path / name)
        loaded = load_augmenter(tmp_path / name, device="cpu")
        assert isinstance(loaded, FeatureHallucination)
        assert np.array_equal(loaded.augment(*NOVEL)[0], augmenter.augment(*NOVEL)[0])
        assert (loaded.history_, loaded.n_analogies_) == (augmenter.history_, augmenter.n_analogies_)


def test_the_seed_alone_decides_and_the_global_state_is_kept() -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed + 17)
        before = torch.random.get_rng_state()
        runs.append(FeatureHallucination(random_state=seed, **TINY).fit(*BASE).augment(*NOVEL)[0])
        assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_analogies_of_all_pairs_are_used_and_approximate_ones_too() -> None:
    for search in ("exact", "approximate"):
        augmenter = FeatureHallucination(search=search, random_state=0, **TINY).fit(*BASE)
        assert augmenter.n_analogies_ == 8 * 5 * 4


def test_centroids_of_one_class_are_drawn_and_never_the_same_twice() -> None:
    X, y = BASE
    few = np.concatenate([np.arange(40), [40, 41], [60], np.arange(80, 160)])  # classes of 2 and of 1
    augmenter = FeatureHallucination(random_state=0, **TINY).fit(X[few], y[few])
    source, target = augmenter._draw_centroids(4000, torch.Generator().manual_seed(0))
    assert torch.equal(source // 5, target // 5)
    sizes = augmenter.sizes_.flatten()
    assert (sizes[source] > 0).all()
    assert (sizes[target] > 0).all()
    alone = source // 5 == 3
    assert ((source == target) == alone).all()
    assert torch.bincount(source // 5).min() > 350
    pairs = torch.bincount((source % 5 * 5 + target % 5)[source // 5 == 0], minlength=25)
    assert (pairs > 0).sum() == 20


def test_wrong_settings_are_refused_by_name() -> None:
    for wrong, message in (
        ({"rectify": "maybe"}, "rectify must be True, False or 'auto'"),
        ({"search": "fast"}, "search must be one of"),
        ({"recipe": "slow"}, "unknown recipe 'slow'"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
        ({"error_weight": -1.0}, "error_weight must be a number of at least 0"),
    ):
        with pytest.raises(InputError, match=message):
            FeatureHallucination(**{**TINY, **wrong}).fit(*BASE)
    with pytest.raises(InputError, match="there is 1 base class; give at least 2"):
        FeatureHallucination(**TINY).fit(*gaussian_classes(1, 10))


def test_classes_of_one_example_are_repeated_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="no analogies"):
        augmenter = FeatureHallucination(random_state=0, **TINY).fit(*gaussian_classes(6, 1))
    assert augmenter.n_analogies_ == 0
    assert np.isfinite(augmenter.augment(*NOVEL, per_class=3)[0]).all()


@pytest.mark.filterwarnings("ignore:examples of a base class do not differ")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e20]),
    offset=st.sampled_from([0.0, 100.0]),
    n_classes=st.sampled_from([2, 6]),
    per_class=st.integers(1, 6),
    dimension=st.sampled_from([1, 2, 30]),
    kind=st.sampled_from(["spread", "constant", "duplicated"]),
)
def test_odd_features_give_finite_examples(
    scale: float, offset: float, n_classes: int, per_class: int, dimension: int, kind: str
) -> None:
    X, y = gaussian_classes(n_classes, per_class, dimension)
    if kind == "constant":
        X = np.ones_like(X)
    if kind == "duplicated":
        X = np.repeat(X[::per_class], per_class, axis=0)
    X = (X + offset) * scale
    augmenter = FeatureHallucination(random_state=0, **TINY).fit(X, y)
    made, _ = augmenter.augment(X[:2], ["new", "new"], per_class=5)
    assert made.shape == (5, dimension)
    assert np.isfinite(made).all()
    assert all(np.isfinite(losses).all() for losses in augmenter.history_.values())
