"""The generator outside of cpaan: an ordinary module of torch, and an ONNX file that onnxruntime runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from cpaan import CPAAN, Smote
from cpaan.cli.app import app
from cpaan.errors import InputError
from cpaan.gan.networks import Generator
from cpaan.methods import set_numbers
from cpaan.onnx import export_generator, portable_generator


def cpaan(**numbers: Any) -> CPAAN:
    """Make one with parameters of its recipe and its centre by plain name."""
    return set_numbers(CPAAN(), numbers)


VARIANTS = ("c-gan", "ccyc-gan", "cdeli-gan", "ccov-gan")
DIMENSION = 4
RNG = np.random.default_rng(0)
CENTERS = 100 + 30 * RNG.normal(size=(8, 1, DIMENSION))
X = (CENTERS + 7 * RNG.normal(size=(8, 12, DIMENSION))).reshape(-1, DIMENSION)
Y = np.repeat([f"base {index}" for index in range(8)], 12)


def trained(variant: str = "ccov-gan", generator: str = "residual", **options: Any) -> CPAAN:
    settings: dict[str, Any] = {"novel_per_episode": 4, "width": 16, "center": "shots", **options}
    augmenter = cpaan(
        variant=variant, generator=generator, recipe="quick", episodes=5, random_state=0, device="cpu", **settings
    )
    return augmenter.fit(X, Y)


def rows(number: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return tuple(100 + 30 * torch.randn(number, DIMENSION, generator=drawn) for _ in range(3))  # type: ignore[return-value]


def session(path: Path) -> Callable[..., Any]:
    runtime: Any = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    opened = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(example: Tensor, source: Tensor, target: Tensor) -> Any:
        inputs = {"example": example.numpy(), "source": source.numpy(), "target": target.numpy()}
        (made,) = opened.run(["synthetic"], inputs)
        return made

    return run


@pytest.mark.parametrize("generator", ["plain", "residual"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_onnxruntime_makes_what_torch_makes(tmp_path: Path, variant: str, generator: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    augmenter = trained(variant, generator)
    assert export_generator(augmenter, tmp_path / "generator.onnx") < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["generator.onnx"]
    run = session(tmp_path / "generator.onnx")
    scaling, network = augmenter.units_, augmenter.generator_
    for number in (1, 2, 7, 300):
        given = rows(number)
        expected = scaling.undo(network(*(scaling.apply(each.double()).float() for each in given)).double())
        np.testing.assert_allclose(run(*given), expected.numpy(), rtol=1e-4, atol=1e-3)


def test_the_graph_is_in_the_users_units(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    # A residual generator keeps the deviation at first, so that the answer is known in any units.
    augmenter = trained(generator="residual")
    with torch.no_grad():
        network = augmenter.generator_
        assert isinstance(network, Generator)
        network.output.weight.zero_()
        network.output.bias.zero_()
    export_generator(augmenter, tmp_path / "generator.onnx")
    example, source, target = rows(5)
    made = session(tmp_path / "generator.onnx")(example, source, target)
    np.testing.assert_allclose(made, (example + target - source).numpy(), rtol=1e-5, atol=1e-3)


def test_the_generator_is_an_ordinary_module() -> None:
    network = trained().generator_
    assert isinstance(network, torch.nn.Module)
    assert not network.training
    example, source, target = (torch.randn(6, DIMENSION, requires_grad=True) for _ in range(3))
    made = network(example, source, target)
    made.square().sum().backward()
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in (example, source, target))
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert network(*(torch.zeros(0, DIMENSION) for _ in range(3))).shape == (0, DIMENSION)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(example, source, target), made)


def test_the_generator_can_be_exported_by_torch() -> None:
    portable = portable_generator(trained("c-gan", "plain"))
    batch = torch.export.Dim("batch")
    program = torch.export.export(portable, rows(3), dynamic_shapes=tuple({0: batch} for _ in range(3)))
    for number in (2, 9):
        given = rows(number)
        torch.testing.assert_close(program.module()(*given), portable(*given))


def test_the_portable_generator_is_a_copy() -> None:
    augmenter = trained()
    portable = portable_generator(augmenter)
    before = portable(*rows(3))
    with torch.no_grad():
        for parameter in augmenter.generator_.parameters():
            parameter.add_(1)
    assert torch.equal(portable(*rows(3)), before)


def test_augmenters_without_a_generator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a Smote has no generator to export"):
        export_generator(Smote().fit(X, Y), tmp_path / "generator.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    monkeypatch.setattr("cpaan.onnx._difference", lambda *_: float("nan"))
    with pytest.raises(
        InputError, match=r"onnxruntime and torch differ by nan .* nothing was written; try other versions"
    ):
        export_generator(trained(), tmp_path / "generator.onnx")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    augmenter = trained()
    augmenter.save(tmp_path / "model")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "-o", str(tmp_path / "generator.onnx")])
    assert result.exit_code == 0, result.output
    assert "onnxruntime and torch agree" in result.stdout
    made = session(tmp_path / "generator.onnx")(*rows(3))
    np.testing.assert_allclose(made, portable_generator(augmenter)(*rows(3)).numpy(), rtol=1e-4, atol=1e-3)
    refused = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "-o", str(tmp_path / "no" / "g.onnx")])
    assert refused.exit_code == 2
    assert "does not exist" in refused.stderr
