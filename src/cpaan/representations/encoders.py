"""Whatever turns images into features: a trained backbone, or a network or encoder of the user's own."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cpaan.data.model_folder import read_config
from cpaan.errors import InputError
from cpaan.representations.augmentation import center_view
from cpaan.representations.backbone import Backbone, encoded
from cpaan.representations.decoding import decode_pil

FloatArray = npt.NDArray[np.float32]
_MATRIX = 2


class Encoder(Protocol):
    """Turns decoded images into features."""

    @property
    def resize(self) -> int:
        """Pixels of the square that images are decoded to, where there is no `decode`."""

    @property
    def decode(self) -> Callable[[bytes], Any] | None:
        """Make something else of an image file's bytes."""

    @property
    def name(self) -> str:
        """What it is: for messages, and to recognise an extraction that was interrupted."""

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

    @torch.no_grad()
    def encode(self, images: Any) -> FloatArray:
        """Give the features of a batch."""
        moved = images.to(self.device, non_blocking=True)
        # With a transform of the user's own, images come as the network wants them.
        shown = center_view(moved, self.size) if self.decode is None else moved
        return _matrix(_applied(self.network, shown), len(images), self.name)


@dataclass(frozen=True)
class ObjectEncoder:
    """An object with `encode`, such as a CLIP model of sentence-transformers, which takes a list of Pillow's images."""

    encoder: Any
    name: str
    resize: int = 1
    decode: Callable[[bytes], Any] | None = decode_pil

    def encode(self, images: Any) -> FloatArray:
        """Give the features of a batch."""
        return _matrix(self.encoder.encode(images), len(images), self.name)


def make_encoder(
    given: Any, *, device: torch.device, size: int | None = None, resize: int | None = None, name: str | None = None
) -> Encoder:
    """Make an encoder of what a user has.

    Parameters
    ----------
    given : Backbone, nn.Module, (nn.Module, transform), or an object with `encode`
        A transform takes one of Pillow's images and gives a tensor, as those of torchvision and timm do. Without one
        a module gets images normalised by ImageNet's mean and standard deviation.
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
        network, size, resize = given.network, size or given.recipe.size, resize or given.recipe.stored
        return NetworkEncoder(network.to(device).eval(), size, resize, device, shown)
    if isinstance(given, tuple) and len(given) == _MATRIX and isinstance(given[0], nn.Module) and callable(given[1]):
        transform = given[1]
        network = given[0].to(device).eval()
        return NetworkEncoder(network, size or 1, resize or 1, device, shown, _Transform(transform))
    if isinstance(given, nn.Module) and not hasattr(given, "encode"):
        size = size or 224
        return NetworkEncoder(given.to(device).eval(), size, resize or round(size * 256 / 224), device, shown)
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
        digest = hashlib.sha256(read_config(folder)["sha256"].encode()).hexdigest()[:16]
        return make_encoder(Backbone.load(folder), device=device, size=size, resize=resize, name=f"backbone {digest}")
    module, colon, function = spec.partition(":")
    if not colon or not function:
        raise InputError(f"{spec} is neither the folder of a backbone nor a name like package.module:function")
    return make_encoder(_imported(module, function, spec), device=device, size=size, resize=resize, name=spec)


@dataclass(frozen=True)
class _Transform:
    """Decodes with Pillow and applies a user's transform; a class of its own, so that workers can get it."""

    transform: Callable[[Any], Any]

    def __call__(self, content: bytes) -> Any:
        return self.transform(decode_pil(content))


def _imported(module: str, function: str, spec: str) -> Any:
    if "" not in sys.path:  # an installed command does not look into the folder that it is called from
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise InputError(f"{spec}: cannot import {module} ({error})") from error
    except AttributeError as error:
        raise InputError(f"{spec}: {module} has no {function}") from error
    try:
        return made()
    except Exception as error:
        raise InputError(f"{spec}: {function}() failed: {type(error).__name__}: {error}") from error


def _applied(network: nn.Module, images: Tensor) -> Any:
    try:
        return encoded(network, images)
    except AttributeError:
        # Not a tensor: say so below, with what it is.
        return network(images)


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
