"""Encoders turn images into features: a trained backbone, or a network or object of the user's."""

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, encode_images, move_network
from cpaan.representations.decoding import decode_pil
from cpaan.representations.loading import Decode, TransformFailed

FloatArray = npt.NDArray[np.float32]
_MATRIX = 2  # dimensions
_PAIR = 2
_USUAL_SIZE, _USUAL_RESIZE = 224, 256


def make_encoder(
    given: Any, *, device: torch.device, size: int | None = None, resize: int | None = None, name: str | None = None
) -> "Encoder":
    """Make an encoder of a backbone, a module or an object.

    Parameters
    ----------
    given : Backbone, nn.Module, (nn.Module, transform), or an object with `encode`
        A transform maps an image of Pillow to a tensor, as those of torchvision and timm do; without one, a module
        gets images normalised by ImageNet's mean and standard deviation. On a GPU, modules compute in bfloat16.
        `encode` is called with a list of images of Pillow, even if the object is a module; a pair is always called as
        a module.
    device : torch.device
        Where a module computes.
    size, resize : int, optional
        Pixels that a module sees, and length of the shorter side they are cut from; by default 224 and 256, or those
        a backbone was trained with.
    name : str, optional
        Name in messages.

    Examples
    --------
    >>> encoder = make_encoder(nn.Flatten(), device=torch.device("cpu"), size=2, resize=2)
    >>> encoder.encode(torch.zeros(3, 3, 2, 2, dtype=torch.uint8)).shape
    (3, 12)
    """
    shown = name or type(given).__name__
    if isinstance(given, Backbone):
        size, resize = given.recipe.size if size is None else size, given.recipe.stored if resize is None else resize
        return NetworkEncoder(move_network(given.network, device).eval(), size, resize, device, shown)
    if isinstance(given, tuple) and len(given) == _PAIR and isinstance(given[0], nn.Module) and callable(given[1]):
        return NetworkEncoder(move_network(given[0], device).eval(), 1, 1, device, shown, _Transform(given[1]))
    if isinstance(given, nn.Module) and not hasattr(given, "encode"):
        size = _USUAL_SIZE if size is None else size
        resize = round(size * _USUAL_RESIZE / _USUAL_SIZE) if resize is None else resize
        return NetworkEncoder(move_network(given, device).eval(), size, resize, device, shown)
    if callable(getattr(given, "encode", None)) and not isinstance(given, str):  # strings have an encode, too
        return ObjectEncoder(given, shown)
    raise InputError(
        f"{shown} is a {type(given).__name__}, which cannot encode images; give a torch module, a pair of a module and "
        "a transform, or an object with encode()"
    )


def find_encoder(spec: str, *, device: torch.device, size: int | None = None, resize: int | None = None) -> "Encoder":
    """Load a backbone from its folder, or import and call `package.module:function`, which runs its code.

    The function takes no arguments and returns anything that `make_encoder` accepts.
    """
    folder = Path(spec)
    if folder.is_dir():
        return make_encoder(Backbone.load(folder), device=device, size=size, resize=resize, name="backbone")
    module, colon, function = spec.partition(":")
    if not colon or not function:
        raise InputError(f"{spec} is neither the folder of a backbone nor a name like package.module:function")
    return make_encoder(_call_imported(module, function, spec), device=device, size=size, resize=resize, name=spec)


@dataclass(frozen=True)
class NetworkEncoder:
    """A network that maps normalised images to features.

    Images are decoded with their shorter side at `resize` pixels, and the network sees the centre of `size` pixels.
    With a `decode`, it sees what that returns.
    """

    network: nn.Module
    size: int
    resize: int
    device: torch.device
    name: str
    decode: Decode | None = None

    @property
    def identity(self) -> str:
        """What the features depend on, to recognise an interrupted extraction."""
        return f"{self.name}, {_weights_digest(self.network)}, {self.size} of {self.resize} pixels"

    @torch.no_grad()
    def encode(self, images: Any) -> FloatArray:
        """Compute the features of a batch."""
        if not isinstance(images, Tensor):
            kinds = ", ".join(sorted({type(image).__name__ for image in images})) or "nothing"
            raise InputError(f"the transform of {self.name} must return tensors of one shape, not {kinds}")
        moved = images.to(self.device, non_blocking=True)
        shown = center_view(moved, self.size) if self.decode is None else moved
        with _blaming(self.name):
            features = encode_images(self.network, shown)
        return _as_matrix(features, len(images), self.name)


@dataclass(frozen=True)
class ObjectEncoder:
    """An object whose `encode` takes a list of Pillow's images, such as a CLIP model of sentence-transformers."""

    encoder: Any
    name: str
    resize: int = 1
    decode: Decode = decode_pil

    @property
    def identity(self) -> str:
        """What the features depend on, as far as the object shows it."""
        return f"{self.name}, {_weights_digest(self.encoder)}"

    def encode(self, images: Any) -> FloatArray:
        """Compute the features of a batch."""
        with _blaming(self.name):
            features = self.encoder.encode(images)
        return _as_matrix(features, len(images), self.name)


Encoder: TypeAlias = NetworkEncoder | ObjectEncoder


@dataclass(frozen=True)
class _Transform:
    """Decode with Pillow and apply a user's transform; a class, so that workers can unpickle it."""

    transform: Callable[[Any], Any]

    def __call__(self, content: bytes) -> Any:
        image = decode_pil(content)
        try:
            return self.transform(image)
        except Exception as error:
            # The image is not at fault and must not be skipped.
            raise TransformFailed(f"the transform failed: {type(error).__name__}: {error}") from error


def _call_imported(module: str, function: str, spec: str) -> Any:
    if "" not in sys.path:  # installed commands do not search the current folder
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
def _blaming(name: str) -> Iterator[None]:
    """Name the user's code that failed, instead of showing a traceback."""
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


def _as_matrix(features: Any, n_images: int, name: str) -> FloatArray:
    if isinstance(features, Tensor):
        features = features.detach().float().cpu().numpy()
    if not isinstance(features, np.ndarray):
        raise InputError(
            f"{name} returns a {type(features).__name__} for a batch of images; it must return an n × D tensor or array"
        )
    if features.ndim != _MATRIX:
        raise InputError(
            f"{name} returns an array of shape {features.shape} for {n_images} images, but features must be 2-d; "
            "average over positions, or take the output of an earlier layer"
        )
    if len(features) != n_images:
        raise InputError(f"{name} returns {len(features)} rows of features for {n_images} images, not one for each")
    return features.astype(np.float32, copy=False)
