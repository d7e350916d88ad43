"""A long-tailed table in an imbalanced-learn pipeline, offline.

python examples/long_tailed_table.py

Machines report twenty sensors, and faults of 24 kinds are to be told apart. Some kinds are common, others were seen
four times. Every augmenter of this package is a sampler of imbalanced-learn: it stands in a pipeline between the scaler
and the classifier, fills up the rare kinds while the pipeline is fitted and does nothing when it predicts. Rows are
generated.
"""

import argparse
from typing import Any

import numpy as np
from imblearn.over_sampling import SMOTE, RandomOverSampler
from imblearn.pipeline import make_pipeline
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.preprocessing import StandardScaler

from cpaan import CPAAN, EmpiricalBayes
from cpaan.gan.recipe import DEFAULT

Array = NDArray[Any]
KINDS, SENSORS, RARE = 24, 20, 8


def make_machine(rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw what is typical of each kind of fault, and how load, heat and age move all sensors together."""
    typical = 0.8 * rng.normal(size=(KINDS, SENSORS))
    return typical, 2 * rng.normal(size=(3, SENSORS))


def draw_rows(machine: tuple[Array, Array], counts: list[int], rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw so many rows of each kind."""
    typical, conditions = machine
    kinds = np.repeat(np.arange(len(counts)), counts)
    moved = rng.normal(size=(len(kinds), len(conditions))) @ conditions
    rows = typical[kinds] + moved + rng.normal(size=(len(kinds), SENSORS))
    return rows, np.array([f"fault {kind:02d}" for kind in kinds])


def samplers(episodes: int, seed: int) -> dict[str, Any]:
    """List what may stand in the pipeline."""
    return {
        "nothing": "passthrough",
        "RandomOverSampler": RandomOverSampler(random_state=seed),
        "SMOTE": SMOTE(k_neighbors=3, random_state=seed),
        "EmpiricalBayes": EmpiricalBayes(random_state=seed),
        "CPAAN": CPAAN(recipe=DEFAULT.but(novel_per_episode=8), episodes=episodes, device="cpu", random_state=seed),
    }


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400, help="of training for cCov-GAN")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    machine = make_machine(rng)
    counts = [150] * (KINDS - RARE) + [4] * RARE
    X, y = draw_rows(machine, counts, rng)
    X_test, y_test = draw_rows(machine, [100] * KINDS, rng)
    rare = np.isin(y_test, [f"fault {kind:02d}" for kind in range(KINDS - RARE, KINDS)])
    print(
        f"{KINDS - RARE} kinds of faults with 150 rows each, {RARE} with 4. Faults that are recognised, in percent:\n"
    )
    print(f"{'between scaler and classifier':<29}  rare kinds  common kinds  mean of both")
    for name, sampler in samplers(given.episodes, given.seed).items():
        pipeline = make_pipeline(StandardScaler(), sampler, LogisticRegression(max_iter=1000))
        said = pipeline.fit(X, y).predict(X_test)
        recall = [100 * recall_score(y_test[of], said[of], average="micro") for of in (rare, ~rare)]
        print(f"{name:<29}  {recall[0]:10.1f}  {recall[1]:12.1f}  {sum(recall) / 2:12.1f}")


if __name__ == "__main__":
    main()
