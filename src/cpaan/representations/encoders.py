"""Whatever turns images into features: a trained backbone, or a network or encoder of the user's own."""

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, encoded, placed
from cpaan.representations.decoding import decode_pil
from cpaan.representations.loading import TransformFailed

FloatArray = npt.NDArray[np.float32]
_MATRIX = 2  # dimensions
_PAIR = 2
_USUAL_SIZE, _USUAL_RESIZE = 224, 256


class Encoder(Protocol):
    """Turns decoded images into features."""

    @property
    def resize(self) -> int:
        """Pixels of the square that images are decoded to, where there is no `decode`."""

    @property
    def decode(self) -> Callable[[bytes], Any] | None:
        """Make something else of an image file's bytes."""

    @property
    def identity(self) -> str:
        """What its features depend on, to recognise an extraction that was interrupted."""

    def encode(self, images: Any) -> FloatArray:
        """Give the features of a batch of decoded images."""


@dataclass(frozen=True)
class NetworkEncoder:
    """A network that takes normalised images, n × 3 × size × size, and gives features.

    Images are decoded with their shorter side at `resize` pixels, of which the network sees the centre.
    """

    network: nn.Module
    size: int
    resize: int
    device: torch.device
    name: str
    decode: Callable[[bytes], Any] | None = None

    @property
    def identity(self) -> str:
        """Its name, its weights and the size of its images."""
        return f"{self.name}, {_weights_digest(self.network)}, {self.size} of {self.resize} pixels"

    @torch.no_grad()
    def encode(self, images: Any) -> FloatArray:
        """Give the features of a batch."""
        if not isinstance(images, Tensor):
            raise InputError(f"the transform of {self.name} must give tensors of one shape, not {_kinds(images)}")
        moved = images.to(self.device, non_blocking=True)
        # With a transform of the user's own, images come as the network wants them.
        shown = center_view(moved, self.size) if self.decode is None else moved
        with _blamed(self.name):
            features = encoded(self.network, shown)
        return _matrix(features, len(images), self.name)


@dataclass(frozen=True)
class ObjectEncoder:
    """An object with `encode`, such as a CLIP model of sentence-transformers, which takes a list of Pillow's images."""

    encoder: Any
    name: str
    resize: int = 1
    decode: Callable[[bytes], Any] | None = decode_pil

    @property
    def identity(self) -> str:
        """Its name, and its weights where it shows them."""
        return f"{self.name}, {_weights_digest(self.encoder)}"

    def encode(self, images: Any) -> FloatArray:
        """Give the features of a batch."""
        with _blamed(self.name):
            features = self.encoder.encode(images)
        return _matrix(features, len(images), self.name)


def make_encoder(
    given: Any, *, device: torch.device, size: int | None = None, resize: int | None = None, name: str | None = None
) -> Encoder:
    """Make an encoder of what a user has.

    Parameters
    ----------
    given : Backbone, nn.Module, (nn.Module, transform), or an object with `encode`
        A transform takes one of Pillow's images and gives a tensor, as those of torchvision and timm do. Without one
        a module gets images normalised by ImageNet's mean and standard deviation. On a GPU modules compute in half
        precision. An `encode` method is called with a list of Pillow's images, also where the object is a module;
        a pair is always called as a module.
    device : torch.device
        Where a module computes.
    size, resize : int, optional
        Pixels that a module sees, and of the shorter side that they are cut from; by default 224 and 256, or what a
        backbone was trained with.
    name : str, optional
        What to call it in messages.

    Examples
    --------
    >>> encoder = make_encoder(nn.Flatten(), device=torch.device("cpu"), size=2, resize=2)
    >>> encoder.encode(torch.zeros(3, 3, 2, 2, dtype=torch.uint8)).shape
    (3, 12)
    """
    shown = name or type(given).__name__
    if isinstance(given, Backbone):
        size, resize = given.recipe.size if size is None else size, given.recipe.stored if resize is None else resize
        return NetworkEncoder(placed(given.network, device).eval(), size, resize, device, shown)
    if isinstance(given, tuple) and len(given) == _PAIR and isinstance(given[0], nn.Module) and callable(given[1]):
        return NetworkEncoder(placed(given[0], device).eval(), 1, 1, device, shown, _Transform(given[1]))
    if isinstance(given, nn.Module) and not hasattr(given, "encode"):
        size = _USUAL_SIZE if size is None else size
        resize = round(size * _USUAL_RESIZE / _USUAL_SIZE) if resize is None else resize
        return NetworkEncoder(placed(given, device).eval(), size, resize, device, shown)
    if callable(getattr(given, "encode", None)) and not isinstance(given, str):  # text can encode itself
        return ObjectEncoder(given, shown)
    raise InputError(
        f"{shown} is a {type(given).__name__}, which cannot encode images; give a torch module, a pair of a module and "
        "a transform, or an object with encode()"
    )


def find_encoder(spec: str, *, device: torch.device, size: int | None = None, resize: int | None = None) -> Encoder:
    """Find an encoder by name: the folder of a backbone, or `package.module:function`, which is imported and called.

    A function takes no arguments and gives what `make_encoder` takes. Importing it runs its code.
    """
    folder = Path(spec)
    if folder.is_dir():
        return make_encoder(Backbone.load(folder), device=device, size=size, resize=resize, name="backbone")
    module, colon, function = spec.partition(":")
    if not colon or not function:
        raise InputError(f"{spec} is neither the folder of a backbone nor a name like package.module:function")
    return make_encoder(_imported(module, function, spec), device=device, size=size, resize=resize, name=spec)


@dataclass(frozen=True)
class _Transform:
    """Decodes with Pillow and applies a user's transform; a class of its own, so that workers can get it."""

    transform: Callable[[Any], Any]

    def __call__(self, content: bytes) -> Any:
        image = decode_pil(content)
        try:
            return self.transform(image)
        except Exception as error:
            # Not the image's fault, so it must not be skipped for it.
            raise TransformFailed(f"the transform failed: {type(error).__name__}: {error}") from error


def _imported(module: str, function: str, spec: str) -> Any:
    if "" not in sys.path:  # an installed command does not look into the folder that it is called from
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise InputError(f"{spec}: cannot import {module!r} ({type(error).__name__}: {error})") from error
    if not callable(getattr(found, function, None)):
        raise InputError(f"{spec}: {module} has no function {function}")
    try:
        return getattr(found, function)()
    except Exception as error:
        raise InputError(f"{spec}: {function}() failed: {type(error).__name__}: {error}") from error


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Say whose code failed, instead of showing where."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} failed on a batch of images: {type(error).__name__}: {error}") from error


def _weights_digest(encoder: Any) -> str:
    if not isinstance(encoder, nn.Module):
        return "unknown weights"
    digest = hashlib.sha256()
    for name, value in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _kinds(images: Any) -> str:
    return ", ".join(sorted({type(image).__name__ for image in images})) or "nothing"


def _matrix(features: Any, n_images: int, name: str) -> FloatArray:
    """Check that features are n × D numbers."""
    if isinstance(features, Tensor):
        features = features.detach().float().cpu().numpy()
    if not isinstance(features, np.ndarray):
        raise InputError(
            f"{name} gives a {type(features).__name__} for a batch of images; it must give one n × D tensor or array"
        )
    if features.ndim != _MATRIX:
        raise InputError(
            f"{name} gives an array of shape {features.shape} for {n_images} images, and features must be 2-d, n × D; "
            "take the mean over places, or the output of a layer before it"
        )
    if len(features) != n_images:
        raise InputError(f"{name} gives {len(features)} rows of features for {n_images} images; one each is needed")
    return features.astype(np.float32, copy=False)
