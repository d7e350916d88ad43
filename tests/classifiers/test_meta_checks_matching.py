"""The classifiers that match with a support, under scikit-learn's own checks."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from cpaan.classifiers.matching import MatchingNetwork, PrototypeMatchingNetwork
from cpaan.classifiers.prototypical import PrototypicalNetwork

SMALL: dict[str, Any] = {
    **{"episodes": 2, "ways": 5, "shots": (1, 2), "queries": 1},
    **{"width": 8, "device": "cpu", "random_state": 0},
}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        PrototypicalNetwork(**SMALL),
        MatchingNetwork(context_width=4, **SMALL),
        PrototypeMatchingNetwork(context_width=4, **SMALL),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
