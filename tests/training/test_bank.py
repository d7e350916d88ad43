import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpaan.training.bank import ClassBank, draw_categories


def make_bank(counts: list[int]) -> ClassBank:
    """Examples that tell their class and their number: [class, index]."""
    rows = [[float(c), float(i)] for c, n in enumerate(counts) for i in range(n)]
    features = torch.tensor(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return ClassBank.from_examples(features[order], features[order, 0].long(), len(counts))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 99))
def test_distinct_draws_are_of_their_class_and_distinct_as_long_as_they_can(
    counts: list[int], number: int, seed: int
) -> None:
    bank = make_bank(counts)
    classes = torch.arange(len(counts)).flip(0)
    drawn = bank.draw_distinct(classes, number, torch.Generator().manual_seed(seed))
    assert drawn.shape == (len(counts), number, 2)
    for row, label in enumerate(classes.tolist()):
        assert (drawn[row, :, 0] == label).all()
        assert len(set(drawn[row, :, 1].tolist())) == min(number, counts[label])


def test_every_example_is_drawn_equally_often() -> None:
    bank = make_bank([2, 5])
    generator = torch.Generator().manual_seed(0)
    drawn = bank.draw(torch.ones(20_000, dtype=torch.long), generator)
    shares = torch.bincount(drawn[:, 1].long(), minlength=5) / 20_000
    torch.testing.assert_close(shares, torch.full((5,), 0.2), rtol=0, atol=0.015)
    first = torch.cat([bank.draw_distinct(torch.tensor([1]), 1, generator) for _ in range(3000)])
    shares = torch.bincount(first[:, 0, 1].long(), minlength=5) / 3000
    torch.testing.assert_close(shares, torch.full((5,), 0.2), rtol=0, atol=0.04)


def test_categories_follow_their_probabilities_and_never_those_of_probability_zero() -> None:
    probabilities = torch.tensor([[0.0, 0.2, 0.0, 0.8, 0.0], [0.5, 0.0, 0.25, 0.25, 0.0]])
    drawn = draw_categories(probabilities, 40_000, torch.Generator().manual_seed(0))
    for row in range(2):
        shares = torch.bincount(drawn[row], minlength=5) / 40_000
        torch.testing.assert_close(shares, probabilities[row], rtol=0, atol=0.01)
        assert (shares[probabilities[row] == 0] == 0).all()


def test_categories_of_any_leading_shape_and_of_weights_that_do_not_sum_to_one() -> None:
    weights = torch.tensor([[[0.0, 6.0], [3.0, 0.0], [0.0, 0.1]], [[0.2, 0.0], [0.0, 0.3], [5.0, 0.0]]])
    certain = weights.argmax(-1)
    for rows, expected in ((weights, certain), (weights[0], certain[0]), (weights[0, 0], certain[0, 0])):
        drawn = draw_categories(rows, 7, torch.Generator().manual_seed(0))
        assert torch.equal(drawn, expected.unsqueeze(-1).expand(*expected.shape, 7))
    drawn = draw_categories(torch.tensor([8.0, 24.0]), 20_000, torch.Generator().manual_seed(0))
    assert drawn.float().mean().item() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_extreme_draws_stay_within_their_class_and_off_probability_zero(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One draw in millions is 0; and 1 is nothing that every device rules out."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    bank, generator = make_bank([3, 1, 2]), torch.Generator()
    outermost = torch.stack([bank.of_class(label)[-1 if uniform else 0] for label in range(3)])
    assert torch.equal(bank.draw(torch.arange(3), generator), outermost)
    assert draw_categories(torch.tensor([[0.0, 0.5, 0.5]]), 1, generator).item() == (2 if uniform else 1)


@pytest.mark.parametrize("nothing", [0.0, torch.nan])
def test_rows_without_any_probability_give_an_index_that_exists(nothing: float) -> None:
    drawn = draw_categories(torch.full((2, 4), nothing), 5, torch.Generator().manual_seed(0))
    assert ((drawn >= 0) & (drawn < 4)).all()
