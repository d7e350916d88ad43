"""Export the generator of a trained model to ONNX, to synthesise examples without torch."""

import copy
import logging
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from cpaan.augmenters.named import CPAAN
from cpaan.data.folders import replacing
from cpaan.errors import InputError
from cpaan.extras import import_extra
from cpaan.gan.networks import Generator
from cpaan.math.scaling import Scaling

INPUTS, OUTPUT = ("example", "source", "target"), "synthetic"
_PURPOSE = "export to ONNX"
# Between two implementations in single precision, which sum a thousand inputs in different orders.
_TOLERANCE = 1e-4


class PortableGenerator(nn.Module):
    """A copy of the generator G_n that takes and returns features in the user's units, in float32 on the CPU."""

    origin: Tensor

    def __init__(self, generator: Generator, scaling: Scaling) -> None:
        super().__init__()
        self.generator = copy.deepcopy(generator).cpu().float()
        self.register_buffer("origin", scaling.origin.detach().cpu().float().clone())
        self.factor = float(scaling.factor)
        self.eval().requires_grad_(False)

    def forward(self, example: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Translate examples of source classes to target classes; each is (…, D)."""
        scaling = Scaling(self.origin, self.factor)
        synthetic: Tensor = self.generator(*(scaling.apply(each.float()) for each in (example, source, target)))
        return scaling.undo(synthetic)


def portable_generator(augmenter: Any) -> PortableGenerator:
    """Return the generator of a trained CPAAN as a module that takes and returns features in the user's units.

    ``forward(example, source, target)`` takes an example of a base class, the mean of that class, and the estimated
    mean of the novel class, each of shape (n, D).

    Examples
    --------
    >>> import numpy as np
    >>> from cpaan.gan.recipe import QUICK
    >>> X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 8
    >>> augmenter = CPAAN(recipe=QUICK.but(novel_per_episode=4), episodes=1, random_state=0, center="shots").fit(X, y)
    >>> portable_generator(augmenter)(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if not isinstance(augmenter, CPAAN):
        raise InputError(f"a {type(augmenter).__name__} has no generator to export; give a trained CPAAN")
    check_is_fitted(augmenter)
    generator = augmenter.generator_
    assert isinstance(generator, Generator)
    return PortableGenerator(generator, augmenter.units_)


def export_generator(augmenter: Any, path: str | PathLike[str]) -> float:
    """Write the generator of a trained CPAAN to an ONNX file, and return how much onnxruntime differs from torch.

    The difference is the largest one on the prototypes of the base classes, relative to the largest value. The graph
    has the inputs `example`, `source` and `target` and the output `synthetic`, all float32 of shape (n, D) in the
    user's units, for any n; see `portable_generator`.

    Parameters
    ----------
    augmenter : CPAAN
        Fitted or loaded, on any device.
    path : str or path
        The file, which is replaced if it exists.
    """
    portable = portable_generator(augmenter)
    for library in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(library, _PURPOSE)
    base = augmenter.model_.base
    prototypes = augmenter.units_.undo(base.prototypes.cpu().double()).float()
    program = _export(portable, prototypes)
    program.model.metadata_props.update({"cpaan.variant": augmenter.model_.variant, "cpaan.units": "the user's own"})
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        difference = _difference(portable, temporary, prototypes)
        if not difference <= _TOLERANCE:
            raise InputError(
                f"onnxruntime and torch differ by {difference:.1e} on the exported generator, so nothing was written; "
                "try other versions of torch, onnxscript or onnxruntime"
            )
    return difference


def _export(portable: PortableGenerator, prototypes: Tensor) -> Any:
    # torch takes a single row for a fixed number of rows, and equal tensors for one input.
    examples = tuple(prototypes[:1].repeat(2, 1) for _ in INPUTS)
    batch = torch.export.Dim("batch")
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # of libraries that are not needed here
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                portable,
                examples,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes=tuple({0: batch} for _ in INPUTS),
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(level)


def _difference(portable: PortableGenerator, path: Path, prototypes: Tensor) -> float:
    """Compare onnxruntime with torch on translations of every base class to the next."""
    import_extra("onnx", _PURPOSE).checker.check_model(str(path))
    session = import_extra("onnxruntime", _PURPOSE).InferenceSession(str(path), providers=["CPUExecutionProvider"])
    values = (prototypes, prototypes, prototypes.roll(1, 0))
    (found,) = session.run([OUTPUT], {name: value.numpy() for name, value in zip(INPUTS, values, strict=True)})
    expected = portable(*values)
    largest = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((torch.from_numpy(found) - expected).abs().max() / largest)
