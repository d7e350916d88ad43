import math

import pytest
import torch

from cpaan.errors import InputError
from cpaan.math import neighborhood as temperature_module
from cpaan.math.neighborhood import (
    HardNeighborhood,
    SoftNeighborhood,
    UniformNeighborhood,
    calibrated_temperature,
    make_neighborhood,
    mean_perplexity,
)

NOVEL = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
BASE = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).double()


def test_soft_similarity_is_the_printed_softmax() -> None:
    found = SoftNeighborhood(temperature=2.0).similarity(NOVEL, BASE)
    for n in range(3):
        scores = [math.exp(-sum((b - x) ** 2 for b, x in zip(row, NOVEL[n], strict=True)) / 2.0) for row in BASE]
        for b in range(6):
            assert found[n, b].item() == pytest.approx(scores[b] / sum(scores))


def test_hard_similarity_goes_to_the_k_nearest() -> None:
    found = HardNeighborhood(neighbors=2).similarity(NOVEL, BASE)
    for n in range(3):
        order = sorted(range(6), key=lambda b: float((BASE[b] - NOVEL[n]).norm()))
        assert sorted(found[n].nonzero().flatten().tolist()) == sorted(order[:2])
    assert set(found.flatten().tolist()) == {0.0, 0.5}
    assert (HardNeighborhood(neighbors=99).similarity(NOVEL, BASE) == 1 / 6).all()


@pytest.mark.parametrize("neighborhood", [SoftNeighborhood(1.0), HardNeighborhood(3), UniformNeighborhood()])
def test_similarities_sum_to_one_and_stay_inside_the_mapping(
    neighborhood: SoftNeighborhood | HardNeighborhood | UniformNeighborhood,
) -> None:
    similarity = neighborhood.similarity(NOVEL, BASE)
    related = neighborhood.related(similarity)
    torch.testing.assert_close(similarity.sum(1), torch.ones(3).double())
    assert (similarity[~related] == 0).all()


def test_soft_mapping_holds_all_classes_even_where_the_score_underflows() -> None:
    neighborhood = SoftNeighborhood(temperature=1e-6)
    similarity = neighborhood.similarity(NOVEL, BASE)
    assert (similarity == 0).any()
    assert neighborhood.related(similarity).all()


def test_unknown_neighborhood_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="soft, hard, uniform"):
        make_neighborhood("fuzzy", temperature=1.0, neighbors=1)


def test_neighborhoods_by_name_have_their_settings() -> None:
    made = {kind: make_neighborhood(kind, temperature=2.5, neighbors=4) for kind in ("soft", "hard", "uniform")}
    assert made == {"soft": SoftNeighborhood(2.5), "hard": HardNeighborhood(4), "uniform": UniformNeighborhood()}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("perplexity", [1.5, 5.0, 20.0])
def test_calibration_reaches_the_perplexity_at_any_scale(scale: float, perplexity: float) -> None:
    prototypes = torch.randn(40, 8, generator=torch.Generator().manual_seed(2)).double() * scale
    temperature = calibrated_temperature(prototypes, perplexity)
    rows = []
    for i in range(40):
        others = torch.cat([prototypes[:i], prototypes[i + 1 :]])
        alpha = SoftNeighborhood(temperature).similarity(prototypes[i : i + 1], others)[0]
        rows.append(math.exp(-sum(a * math.log(a) for a in alpha.tolist() if a > 0)))
    assert sum(rows) / 40 == pytest.approx(perplexity, rel=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_calibration_of_few_or_equal_classes_is_finite(n: int) -> None:
    assert 0 < calibrated_temperature(torch.randn(n, 2), 5.0) < float("inf")
    assert 0 < calibrated_temperature(torch.zeros(n, 2), 5.0) < float("inf")


def test_calibration_of_two_classes_has_their_units_and_of_three_the_perplexity() -> None:
    """With one neighbour, any temperature has the perplexity 1; that of the classes' distance knows their scale."""
    assert calibrated_temperature(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 5.0) == pytest.approx(25)
    corners = torch.tensor([[0.0], [1.0], [3.0]]).double()
    temperature = calibrated_temperature(corners, 1.5)
    others = torch.tensor([[1.0, 9.0], [1.0, 4.0], [9.0, 4.0]]).double()
    assert mean_perplexity(others, temperature).item() == pytest.approx(1.5, rel=1e-6)


def test_perplexity_of_a_flat_row_is_its_length() -> None:
    assert mean_perplexity(torch.zeros(1, 7), 1.0).item() == pytest.approx(7)


def test_calibration_of_many_classes_asks_a_spread_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = torch.randn(900, 8, generator=torch.Generator().manual_seed(2)).double()
    everyone = calibrated_temperature(prototypes, 5.0)
    monkeypatch.setattr(temperature_module, "MOST_LEFT_OUT", 300)
    assert calibrated_temperature(prototypes, 5.0) == pytest.approx(everyone, rel=0.05)
    monkeypatch.setattr(temperature_module, "MOST_LEFT_OUT", 900)
    assert calibrated_temperature(prototypes, 5.0) == everyone
    asked: list[int] = []

    def spy(distances: torch.Tensor, temperature: float) -> torch.Tensor:
        asked.append(len(distances))
        return mean_perplexity(distances, temperature)

    monkeypatch.setattr(temperature_module, "mean_perplexity", spy)
    for most in (30, 25):
        monkeypatch.setattr(temperature_module, "MOST_LEFT_OUT", most)
        calibrated_temperature(prototypes[:90], 5.0)
    assert set(asked) == {30, 23}  # every third, every fourth
