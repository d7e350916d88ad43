"""Every augmenter under imbalanced-learn's own checks, and what its samplers promise beyond those."""

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from imblearn.base import is_sampler
from imblearn.over_sampling import RandomOverSampler
from imblearn.over_sampling.base import BaseOverSampler
from imblearn.pipeline import Pipeline, make_pipeline
from imblearn.utils.estimator_checks import parametrize_with_checks
from sklearn._config import config_context  # sklearn itself exports it in a way that mypy cannot see
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from cpaan import CPAAN, Anchored, DeviationTransfer, EmpiricalBayes, InputError, PooledGaussian
from cpaan.augmenters.distribution_calibration import DistributionCalibration
from cpaan.augmenters.feature_hallucination import FeatureHallucination
from cpaan.augmenters.feature_imagination import FeatureImagination
from cpaan.augmenters.smote import Smote
from cpaan.centers import Calibrated
from cpaan.classifiers.nearest_prototype import NearestPrototype
from cpaan.methods import augmenter_classes, set_numbers


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


FloatArray = npt.NDArray[np.float64]
pd: Any = pytest.importorskip("pandas")
pl: Any = pytest.importorskip("polars")
sparse: Any = pytest.importorskip("scipy.sparse")

# Default settings, but for how long to train.
CHECKED: list[Any] = [
    cpaan(episodes=3, width=16, noise_dimension=4, device="cpu", random_state=0),
    DeviationTransfer(random_state=0),
    DistributionCalibration(random_state=0),
    EmpiricalBayes(random_state=0),
    FeatureHallucination(iterations=3, centroids=4, device="cpu", random_state=0),
    FeatureImagination(episodes=3, device="cpu", random_state=0),
    PooledGaussian(random_state=0),
    Smote(random_state=0),
    Anchored(random_state=0),
]
SMALL_CPAAN: dict[str, Any] = {"center": "shots", "novel_per_episode": 2, "batch_size": 30}

quiet = pytest.mark.filterwarnings(
    "ignore:.*training directly", "ignore:.*analogies are drawn between two", "ignore:.*there are no analogies"
)


# It gives pytest a generator, which pytest is about to refuse.
checks = parametrize_with_checks(CHECKED)


@quiet
@pytest.mark.parametrize(checks.args[0], list(checks.args[1]), **checks.kwargs)
def test_imbalanced_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(params=CHECKED, ids=lambda augmenter: type(augmenter).__name__)
def augmenter(request: pytest.FixtureRequest) -> Any:
    return clone(request.param)


def long_tail(*sizes: int, dimension: int = 5) -> tuple[FloatArray, npt.NDArray[np.str_]]:
    """Draw classes "a", "b", … of these sizes, in an order that mixes them."""
    rng = np.random.default_rng(0)
    y = np.repeat([chr(ord("a") + place) for place in range(len(sizes))], sizes)
    X = np.repeat(4 * rng.normal(size=(len(sizes), dimension)), sizes, axis=0) + rng.normal(size=(len(y), dimension))
    order = rng.permutation(len(y))
    return X[order], y[order]


TWO, SIX = (20, 7), (30, 25, 22, 20, 3, 1)


def test_all_augmenters_are_over_samplers_and_all_are_checked() -> None:
    assert {type(augmenter) for augmenter in CHECKED} == set(augmenter_classes())
    assert all(isinstance(augmenter, BaseOverSampler) and is_sampler(augmenter) for augmenter in CHECKED)


def ten_more(y: npt.NDArray[Any]) -> dict[Any, int]:
    return {label: count + 10 for label, count in Counter(y.tolist()).items() if count < 25}


STRATEGIES: list[tuple[tuple[int, ...], Any]] = [
    *((sizes, name) for sizes in (TWO, SIX) for name in ("auto", "minority", "not minority", "not majority", "all")),
    (TWO, 0.5),
    (TWO, 1.0),
    (TWO, {"a": 21, "b": 30}),
    (SIX, {"b": 25, "f": 4}),
    (SIX, ten_more),
]


@quiet
@pytest.mark.parametrize(("sizes", "strategy"), STRATEGIES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_strategy_means_what_it_means_in_imbalanced_learn(sizes: tuple[int, ...], strategy: Any) -> None:
    X, y = long_tail(*sizes)
    theirs = RandomOverSampler(sampling_strategy=strategy, random_state=0).fit(X, y)
    expected = Counter(theirs.fit_resample(X, y)[1].tolist())
    for kind in (PooledGaussian, Smote):
        ours = kind(sampling_strategy=strategy, random_state=0)
        _, labels = ours.fit_resample(X, y)
        assert Counter(labels.tolist()) == expected
        assert ours.sampling_strategy_ == theirs.sampling_strategy_


@quiet
@pytest.mark.parametrize("strategy", ["auto", "minority", "base_mean", {"a": 31, "b": 30, "c": 22, "f": 5}])
def test_real_rows_come_first_and_unchanged(augmenter: Any, strategy: Any) -> None:
    X, y = long_tail(*SIX)
    X_new, y_new = augmenter.set_params(sampling_strategy=strategy).fit_resample(X, y)
    np.testing.assert_array_equal(X_new[: len(X)], X)
    assert y_new[: len(y)].tolist() == y.tolist()
    assert len(X_new) == len(y_new) == len(X) + sum(augmenter.sampling_strategy_.values())
    assert np.isfinite(X_new).all()
    again, _ = clone(augmenter).fit_resample(X, y)
    np.testing.assert_array_equal(again, X_new)


@quiet
@pytest.mark.parametrize("sizes", [(20, 1), (20, 19), (5, 5, 1), (1, 2)], ids=str)
def test_few_examples_of_few_classes_are_enough(augmenter: Any, sizes: tuple[int, ...]) -> None:
    _, y_new = augmenter.fit_resample(*long_tail(*sizes))
    assert set(Counter(y_new.tolist()).values()) == {max(sizes)}


def test_base_mean_fills_small_classes_alone() -> None:
    X, y = long_tail(*SIX)  # those of 3 and of 1 are small
    augmenter = PooledGaussian(sampling_strategy="base_mean", random_state=0)
    _, y_new = augmenter.fit_resample(X, y)
    assert Counter(y_new.tolist()) == {"a": 30, "b": 25, "c": 22, "d": 20, "e": 24, "f": 24}
    assert augmenter.sampling_strategy_ == {"e": 21, "f": 23}
    assert augmenter.classes_ == ("a", "b", "c", "d")
    hallucination = FeatureHallucination(iterations=2, fill_to=10, sampling_strategy="base_mean", device="cpu")
    assert Counter(hallucination.fit_resample(X, y)[1].tolist())["f"] == 10


def test_per_class_says_how_many_of_those_that_are_filled_up() -> None:
    X, y = long_tail(*SIX)
    for strategy, filled in (("auto", "bcdef"), ("base_mean", "ef"), ({"a": 30, "f": 9}, "f")):
        _, y_new = Smote(per_class=4, sampling_strategy=strategy, random_state=0).fit_resample(X, y)
        assert Counter(y_new[len(y) :].tolist()) == dict.fromkeys(filled, 4)
    with pytest.raises(InputError, match="per_class must be a whole number"):
        Smote(per_class=0).fit_resample(X, y)


def test_large_classes_are_learned_from_also_where_they_are_filled_up() -> None:
    X, y = long_tail(*SIX)
    augmenter = PooledGaussian(random_state=0)
    augmenter.fit_resample(X, y)
    expected = PooledGaussian().fit(X[np.isin(y, list("abcd"))], y[np.isin(y, list("abcd"))])
    np.testing.assert_array_equal(augmenter.deviations_.tensors()["factor_"], expected.deviations_.tensors()["factor_"])


def test_adversarial_networks_meta_train_where_four_classes_are_large() -> None:
    augmenter = set_numbers(clone(CHECKED[0]), SMALL_CPAAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        augmenter.fit_resample(*long_tail(*SIX))
    assert augmenter.classes_ == ("a", "b", "c", "d")


def test_adversarial_networks_leave_a_large_class_where_it_is() -> None:
    X, y = long_tail(200, 190, 180, 170, 160, 199, 4)
    augmenter = cpaan(recipe="quick", episodes=30, novel_per_episode=3, device="cpu", random_state=0)
    X_new, y_new = augmenter.fit_resample(X, y)  # with centres estimated, for the class of four
    assert isinstance(augmenter.center_, Calibrated)
    for name in "bcdef":
        made, real = X_new[len(X) :][y_new[len(y) :] == name], X[y == name]
        # A class of 199 examples lacks a single one, which is not to make up for an error in the estimate.
        assert np.linalg.norm(made.mean(0) - real.mean(0)) < np.linalg.norm(real.std(0))


@pytest.mark.parametrize(
    ("sizes", "strategy", "base"),
    [
        ((20, 2), "auto", ("a",)),
        ((20, 18, 15, 1), "auto", ("a",)),
        ((20, 18, 15, 1), "minority", ("a", "b", "c")),
        ((20, 10), {"a": 25, "b": 25}, ("a", "b")),
    ],
    ids=str,
)
def test_fewer_are_trained_directly_which_is_said_once(
    sizes: tuple[int, ...], strategy: Any, base: tuple[str, ...]
) -> None:
    augmenter = clone(CHECKED[0]).set_params(sampling_strategy=strategy)
    with pytest.warns(UserWarning, match="too few to meta-train: training directly") as told:
        augmenter.fit_resample(*long_tail(*sizes))
    assert len(told) == 1
    assert told[0].filename == __file__
    assert augmenter.classes_ == base


def test_analogies_are_drawn_with_small_classes_where_one_is_large() -> None:
    augmenter = FeatureHallucination(iterations=2, device="cpu", random_state=0)
    with pytest.warns(UserWarning, match="analogies are drawn between two"):
        _, y_new = augmenter.fit_resample(*long_tail(30, 4, 2))
    assert augmenter.classes_ == ("a", "b", "c")
    assert Counter(y_new.tolist()) == {"a": 30, "b": 30, "c": 30}


def test_a_balanced_set_comes_back_and_teaches_nothing() -> None:
    X, y = long_tail(8, 8, 8)
    augmenter = PooledGaussian().fit(X, y)
    X_new, y_new = augmenter.fit_resample(X, y)
    np.testing.assert_array_equal(X_new, X)
    assert X_new is not X
    assert y_new.tolist() == y.tolist()
    assert augmenter.n_features_in_ == 5
    with pytest.raises(NotFittedError):
        augmenter.augment(X[:2], ["new", "new"])


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda X: pd.DataFrame(X, columns=list("vwxyz"), index=range(5, 5 + len(X))),
    "polars": lambda X: pl.DataFrame(X, schema=list("vwxyz")),
    "torch": lambda X: torch.tensor(X, dtype=torch.float32),
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "list": lambda X: X.tolist(),
    "half": lambda X: X.astype(np.float16),
}
LABELS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda y: pd.Series(y, name="kind", dtype="category"),
    "polars": lambda y: pl.Series("kind", y),
    "list": lambda y: y.tolist(),
}


def dense(X: Any) -> FloatArray:
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)


@pytest.mark.parametrize("container", list(CONTAINERS))
def test_what_comes_out_has_the_type_that_went_in(container: str) -> None:
    X, y = long_tail(*SIX)
    given, labels = CONTAINERS[container](X), LABELS.get(container, np.asarray)(y)
    X_new, y_new = EmpiricalBayes(random_state=0).fit_resample(given, labels)
    assert type(X_new) is type(given)
    assert type(y_new) is type(labels)
    np.testing.assert_array_equal(dense(X_new)[: len(X)], dense(given))
    assert getattr(X_new, "dtype", None) == getattr(given, "dtype", None)
    if container in ("pandas", "polars"):
        assert list(X_new.columns) == list("vwxyz")
        assert (y_new.name, y_new.dtype) == ("kind", labels.dtype)
    expected, expected_labels = EmpiricalBayes(random_state=0).fit_resample(X, y)
    np.testing.assert_allclose(dense(X_new), expected, atol=0.05)
    assert list(y_new) == expected_labels.tolist()


def test_sparse_base_and_novel_classes_are_taken() -> None:
    X, y = long_tail(20, 20, 4)
    base = y < "c"
    expected, _ = Smote(random_state=0).fit(X[base], y[base]).augment(X[~base], y[~base])
    augmenter = Smote(random_state=0).fit(sparse.csr_array(X[base]), y[base])
    made, _ = augmenter.augment(sparse.csr_array(X[~base]), y[~base])
    assert isinstance(made, sparse.csr_array)
    np.testing.assert_array_equal(made.toarray(), expected)


def test_columns_of_classes_keep_their_number() -> None:
    X, names = long_tail(9, 4)
    y = np.eye(3, dtype=np.int8)[np.searchsorted(["a", "b"], names)]  # nothing is of the third class
    _, y_new = Smote(random_state=0).fit_resample(X, y)
    assert y_new.dtype == np.int8
    assert y_new[: len(y)].tolist() == y.tolist()
    assert y_new.sum(0).tolist() == [9, 9, 0]


def test_labels_are_of_any_hashable_type() -> None:
    X, _ = long_tail(6, 2, 1)
    y = [("oak", 1)] * 6 + ["elm"] * 2 + [7]  # which NumPy cannot sort
    _, y_new = Smote(sampling_strategy={("oak", 1): 6, 7: 3}, random_state=0).fit_resample(X, y)
    assert Counter(y_new) == {("oak", 1): 6, "elm": 2, 7: 3}
    assert Counter(Smote(random_state=0).fit_resample(X, y)[1]) == {("oak", 1): 6, "elm": 6, 7: 6}


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("majority", "sampling_strategy cannot be 'majority'; choose one of 'auto', .*'base_mean'"),
        ("everything", "sampling_strategy cannot be 'everything'"),
        (None, "sampling_strategy cannot be None"),
        (["a"], "sampling_strategy cannot be"),
        (True, "sampling_strategy cannot be True"),
        (lambda y: "auto", "sampling_strategy cannot be <function"),
        (0.5, "only when the type of target is binary"),
        (1.5, r"in the range \(0, 1\]"),
        ({"a": 3}, "greater or equal to the original number"),
        ({"z": 30}, "unknown class 'z'"),
    ],
)
def test_strategies_that_cannot_be_are_refused(strategy: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Smote(sampling_strategy=strategy).fit_resample(*long_tail(*SIX))


def test_targets_that_are_no_classes_are_refused() -> None:
    X, _ = long_tail(*TWO)
    with pytest.raises(InputError, match="y has 1 class only, 'a'"):
        Smote().fit_resample(X, ["a"] * len(X))
    with pytest.raises(InputError, match="y cannot be used as classes: Unknown label type"):
        Smote().fit_resample(X, np.linspace(0, 1, len(X)))
    with pytest.raises(InputError, match="Multilabel"):
        Smote().fit_resample(X, np.ones((len(X), 3), dtype=int))


def test_columns_in_another_order_are_refused() -> None:
    X, y = long_tail(*SIX)
    frame = pd.DataFrame(X, columns=list("vwxyz"))
    augmenter: Any = Smote(random_state=0).fit(frame, y)
    assert augmenter.feature_names_in_.tolist() == list("vwxyz")
    assert augmenter.get_feature_names_out().tolist() == list("vwxyz")
    with pytest.raises(ValueError, match="same order"):
        augmenter.augment(frame[list("zyxwv")][:2], ["new", "new"])
    assert len(augmenter.augment(X[:2], ["new", "new"], per_class=3)[0]) == 3


def test_a_strategy_is_saved_with_the_model_unless_it_is_a_function(tmp_path: Path) -> None:
    X, y = long_tail(*TWO)
    for strategy, kept in (({"a": 21, 3: np.int64(4), ("b", 1): 9}, {"a": 21, 3: 4, ("b", 1): 9}), (ten_more, "auto")):
        Smote(sampling_strategy=strategy, random_state=0).fit(X, y).save(tmp_path / "model")
        assert Smote.load(tmp_path / "model").sampling_strategy == kept


@quiet
def test_augmenters_stand_in_pipelines_and_searches() -> None:
    X, y = long_tail(30, 28, 26, 24, 6, 6)
    for frame in (X, pd.DataFrame(X, columns=list("vwxyz"))):
        steps = [("scale", StandardScaler()), ("augment", "passthrough"), ("classify", NearestPrototype())]
        grid = [
            {"augment": [EmpiricalBayes(random_state=0)], "augment__sampling_strategy": ["auto", "base_mean"]},
            {"augment": [set_numbers(clone(CHECKED[0]), SMALL_CPAAN)], "augment__episodes": [1, 2]},
        ]
        search = GridSearchCV(Pipeline(steps), grid, cv=2, error_score="raise").fit(frame, y)
        assert search.cv_results_["mean_test_score"].min() > 0.5
        assert set(search.predict(frame)) == set(y)


def test_a_pipeline_resamples_while_it_is_fitted_and_not_while_it_predicts() -> None:
    X, y = long_tail(*TWO)
    pipeline = make_pipeline(Smote(random_state=0), NearestPrototype()).fit(X, y)
    X_new, y_new = Smote(random_state=0).fit_resample(X, y)
    expected = NearestPrototype().fit(X_new, y_new).predict(X)
    assert pipeline.predict(X).tolist() == expected.tolist()


class Priced(Smote):
    """A user's sampler, which is told what examples cost."""

    def fit_resample(self, X: Any, y: Any, *, cost: float | None = None) -> tuple[Any, Any]:  # type: ignore[override]
        self.cost_ = cost
        return super().fit_resample(X, y)


def test_metadata_go_to_those_that_ask_for_them() -> None:
    X, y = long_tail(*TWO)
    weight = np.where(y == "a", 1.0, 0.0)
    with config_context(enable_metadata_routing=True):
        priced: Any = Priced(random_state=0)
        classifier: Any = NearestPrototype()
        pipeline = make_pipeline(
            priced.set_fit_resample_request(cost=True),
            classifier.set_fit_request(sample_weight=False).set_score_request(sample_weight=True),
        )
        pipeline.fit(X, y, cost=3.0)
        assert pipeline[0].cost_ == 3.0
        right = pipeline.predict(X) == y
        assert pipeline.score(X, y, sample_weight=weight) == right[y == "a"].mean()
        plain = make_pipeline(Smote(random_state=0), NearestPrototype())
        with pytest.raises(TypeError, match="unexpected argument"):
            plain.fit(X, y, cost=3.0)
