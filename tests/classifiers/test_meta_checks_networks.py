"""The cosine classifier and the networks that compare, adapt or attend, under scikit-learn's own checks."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from cpaan.classifiers.attentive_weights import AttentiveWeightGenerator
from cpaan.classifiers.cosine import CosineClassifier
from cpaan.classifiers.maml import MAML
from cpaan.classifiers.siamese import SiameseNetwork

SMALL: dict[str, Any] = {"episodes": 3, "device": "cpu", "random_state": 0}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        CosineClassifier(),
        SiameseNetwork(width=8, **SMALL),
        MAML(width=8, **SMALL),
        AttentiveWeightGenerator(base_episodes=3, **SMALL),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
