"""The generator of a trained model as an ONNX file, to make examples where there is no torch.

A trained generator for use elsewhere: features go in and come out as they are, in the user's own units.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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


class PortableGenerator(nn.Module):
    """G_n with the change of units before and after it, in single precision on the CPU.

    Parameters
    ----------
    generator : Generator
        What was trained; it is copied.
    scaling : Scaling
        From the user's units to those that it was trained in.

    >>> import torch
    >>> scaling = Scaling(torch.tensor([10.0, 10.0]), 2.0)
    >>> portable = PortableGenerator(Generator(dimension=2, width=8, residual=True), scaling)
    >>> portable(torch.tensor([[11.0, 10.0]]), torch.tensor([[10.0, 10.0]]), torch.tensor([[20.0, 30.0]])).tolist()
    [[21.0, 30.0]]
    """

    def __init__(self, generator: Generator, scaling: Scaling) -> None:
        super().__init__()
        self.generator = copy.deepcopy(generator).cpu().float()
        self.register_buffer("origin", scaling.origin.detach().cpu().float().clone())
        self.factor = float(scaling.factor)
        self.eval().requires_grad_(False)

    origin: Tensor

    def forward(self, example: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Translate examples of source classes to target classes, all in the user's units: each (…, D)."""
        scaling = Scaling(self.origin, self.factor)
        made: Tensor = self.generator(*(scaling.apply(each.float()) for each in (example, source, target)))
        return scaling.undo(made)


INPUTS, OUTPUT = ("example", "source", "target"), "synthetic"
_PURPOSE = "export to ONNX"
# One torch of single precision against another: sums over a thousand inputs in another order.
_TOLERANCE = 1e-4


def portable_generator(augmenter: Any) -> PortableGenerator:
    """Give the generator of a trained augmenter as a module that takes and gives features in the user's units.

    Parameters
    ----------
    augmenter : CPAAN
        Fitted or loaded.

    Returns
    -------
    PortableGenerator
        ``forward(example, source, target)``: an example of a base class, the mean of that class, and where the mean of
        the novel class is thought to be; each of shape (n, D).

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
    """Write the generator of a trained augmenter as an ONNX file, and compare what it makes with what torch makes.

    The graph has the inputs `example`, `source` and `target` and the output `synthetic`, all of single precision and
    shape (n, D) in the user's units, for any n; see `portable_generator` for what they are.

    Parameters
    ----------
    augmenter : CPAAN
        Fitted or loaded, on any device.
    path : str or path
        The file. One that is there already is replaced.

    Returns
    -------
    float
        The largest difference between onnxruntime and torch on the prototypes of the base classes, as a share of the
        largest value.

    Raises
    ------
    InputError
        Where it has no generator, a library is missing (``pip install 'cpaan[onnx]'``), the file cannot be written, or
        the two disagree.
    """
    portable = portable_generator(augmenter)
    for library in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(library, _PURPOSE)
    base = augmenter.model_.base
    prototypes = augmenter.units_.undo(base.prototypes.cpu().double()).float()
    program = _program(portable, prototypes)
    program.model.metadata_props.update({"cpaan.variant": augmenter.model_.variant, "cpaan.units": "the user's own"})
    with replacing(Path(path)) as temporary:
        program.save(temporary, external_data=False)
        difference = _difference(portable, temporary, prototypes)
        if not difference <= _TOLERANCE:
            raise InputError(f"onnxruntime makes other examples than torch: they differ by {difference:.1e}")
    return difference


def _program(portable: PortableGenerator, prototypes: Tensor) -> Any:
    # Two rows at least, or else torch takes their number for fixed; tensors apart, or else for one input.
    examples = tuple(prototypes[:1].repeat(2, 1) for _ in INPUTS)
    batch = torch.export.Dim("batch")
    with _silenced():
        return torch.onnx.export(
            portable,
            examples,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=tuple({0: batch} for _ in INPUTS),
            dynamo=True,
            verbose=False,
        )


def _difference(portable: PortableGenerator, path: Path, prototypes: Tensor) -> float:
    """Compare both on translations of every base class to the next one."""
    import_extra("onnx", _PURPOSE).checker.check_model(str(path))
    session = import_extra("onnxruntime", _PURPOSE).InferenceSession(str(path), providers=["CPUExecutionProvider"])
    values = (prototypes, prototypes, prototypes.roll(1, 0))
    (found,) = session.run([OUTPUT], {name: value.numpy() for name, value in zip(INPUTS, values, strict=True)})
    expected = portable(*values)
    largest = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((torch.from_numpy(found) - expected).abs().max() / largest)


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep back what torch has to say about libraries that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
