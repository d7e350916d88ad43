"""Share trained models on the Hugging Face Hub; a repository is the folder that `save` writes, with a model card.

Only `config.json` and `model.safetensors` are downloaded, whatever else a repository holds; nothing is run or
unpickled.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpaan.data.folders import CONFIG, TENSORS, read_config, read_shapes, write_atomically
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator
from cpaan.extras import import_extra
from cpaan.methods import load_augmenter

CARD = "README.md"
_PURPOSE = "the Hugging Face Hub"

_TEMPLATE = """---
library_name: cpaan
license: {license}
tags: [cpaan, low-shot-learning, few-shot-learning, data-augmentation, tabular]
---

# {name}

This model synthesises features for classes with a handful of examples, with the Python package cpaan.

- method: {method}
- features: {features}
- base classes: {classes}
- contents: {contents}

```python
from cpaan.hub import from_hub

augmenter = from_hub("{repo_id}")
X_synthetic, y_synthetic = augmenter.augment(X_novel, y_novel)
```
"""


def push_to_hub(
    model: SavedEstimator | str | os.PathLike[str],
    repo_id: str,
    *,
    license: str = "unknown",
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a cpaan model",
) -> str:
    """Upload a trained model to a repository of the Hugging Face Hub, and return the address of the commit.

    A missing repository is created. The model contains the names of its base classes and, unless trained with
    ``reservoir=0``, examples of them; its card says how many.

    Parameters
    ----------
    model : fitted estimator, or str or path
        The model, or the folder it was saved to. A folder without a model card gets one.
    repo_id : str
        Such as "me/my-model".
    license : str
        The Hub's name of the model's licence, for the card.
    private, token, revision, commit_message
        Passed to `huggingface_hub`.
    """
    with _hub(f"upload to {repo_id}") as hub, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if isinstance(model, SavedEstimator) else Path(model)
        if isinstance(model, SavedEstimator):
            model.save(folder)
        write_card(folder, repo_id, license=license)
        hub.create_repo(repo_id, private=private, token=token, exist_ok=True)
        options: dict[str, Any] = {"revision": revision, "token": token, "commit_message": commit_message}
        files = [CONFIG, TENSORS, CARD]
        commit = hub.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=files, **options)
    return str(getattr(commit, "commit_url", commit))


def from_hub(
    repo_id: str,
    *,
    kind: type[SavedEstimator] | None = None,
    device: str = "auto",
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Download a model from the Hugging Face Hub and load it; it produces the same bits as the uploaded one.

    Parameters
    ----------
    repo_id : str
        Such as "me/my-model".
    kind : class, optional
        Class of the expected estimator; by default any augmenter.
    device : {"auto", "cpu", "cuda", "mps"}
        Where the model computes.
    revision, token, cache_dir
        Passed to `huggingface_hub`. A commit hash as revision can never change.
    """
    with _hub(f"download {repo_id}") as hub:
        files, place = [CONFIG, TENSORS], {"revision": revision, "token": token, "cache_dir": cache_dir}
        folder = hub.snapshot_download(repo_id, allow_patterns=files, **place)
    try:
        return load_augmenter(folder, device=device) if kind is None else kind.load(folder, device=device)
    except (KeyError, TypeError) as error:
        raise InputError(f"{repo_id} holds a damaged model, or one of another version of cpaan: {error}") from error


def write_card(folder: Path, repo_id: str, *, license: str = "unknown") -> None:
    """Write a model card into the folder of a model that has none."""
    config = read_config(folder)
    if (folder / CARD).exists():
        return
    if not all(character.isalnum() or character in "-._" for character in license):
        raise InputError(f"license must be a licence's name on the Hub, such as mit or cc-by-4.0, got {license!r}")
    kept = read_shapes(folder / TENSORS).get("reservoir.deviations", (0,))[0]
    card = _TEMPLATE.format(
        license=license,
        name=repo_id.rpartition("/")[2],
        method=f"{config['kind']} {config.get('variant', '')}".rstrip(),
        features=config.get("dimension"),
        classes=len(config.get("classes", [])),
        contents=f"examples of base classes: {kept}" if kept else "summaries of base classes, no examples",
        repo_id=repo_id,
    )
    write_atomically(folder / CARD, card.encode())


@contextmanager
def _hub(action: str) -> Iterator[Any]:
    """Import the library; report a wrong name, a missing repository, no network or no permission as an InputError."""
    errors = import_extra("huggingface_hub.errors", _PURPOSE)
    try:
        yield import_extra("huggingface_hub", _PURPOSE)
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise InputError(f"cannot {action}: {error}") from error
