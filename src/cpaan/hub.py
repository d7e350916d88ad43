"""Trained models on the Hugging Face Hub: a repository is the folder that `save` writes, with a model card beside.

What is downloaded are `config.json` and `model.safetensors` alone, whatever else a repository holds; nothing of it is
ever run or unpickled.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from cpaan.data.folders import CONFIG, TENSORS, read_config, read_shapes, write_atomically
from cpaan.errors import InputError
from cpaan.estimator import SavedEstimator
from cpaan.extras import import_extra
from cpaan.methods import load_augmenter

CARD = "README.md"
_PURPOSE = "the Hugging Face Hub"
_TAGS = ("cpaan", "low-shot-learning", "few-shot-learning", "data-augmentation", "tabular")


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
    """Upload a trained model to a repository of the Hugging Face Hub, which is made where it is missing.

    Parameters
    ----------
    model : fitted estimator, or str or path
        What to upload, or the folder that it was saved to. A folder gets a model card, unless it has one.
    repo_id : str
        Such as "me/my-model".
    license : str
        The Hub's name of the licence that the model is given away under, for its card.
    private, token, revision, commit_message
        As `huggingface_hub` takes them.

    Returns
    -------
    str
        The address of the commit.

    Raises
    ------
    InputError
        Where the library is missing (``pip install 'cpaan[hub]'``), the folder holds no model, or the Hub refuses.

    Notes
    -----
    A model holds examples of its base classes, unless it was trained with ``reservoir=0``, and their names; the card
    says how many.
    """
    library = import_extra("huggingface_hub", _PURPOSE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if isinstance(model, SavedEstimator) else Path(model)
        if isinstance(model, SavedEstimator):
            model.save(folder)
        write_card(folder, repo_id, license=license)
        try:
            library.create_repo(repo_id, private=private, token=token, exist_ok=True)
            commit = library.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                allow_patterns=[CONFIG, TENSORS, CARD],
                revision=revision,
                token=token,
                commit_message=commit_message,
            )
        except _refusals() as error:
            raise InputError(f"cannot upload to {repo_id}: {error}") from error
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
    """Download a model from the Hugging Face Hub and load it.

    Parameters
    ----------
    repo_id : str
        Such as "me/my-model".
    kind : class, optional
        Of the estimator that is expected there; by default any augmenter.
    device : {"auto", "cpu", "cuda", "mps"}
        Where it shall compute.
    revision, token, cache_dir
        As `huggingface_hub` takes them. A revision that is the hash of a commit cannot change later.

    Returns
    -------
    fitted estimator
        It makes the same bits as the one that was uploaded.

    Raises
    ------
    InputError
        Where the library is missing (``pip install 'cpaan[hub]'``), the repository cannot be had, or it holds no model.
    """
    library = import_extra("huggingface_hub", _PURPOSE)
    try:
        folder = library.snapshot_download(
            repo_id, revision=revision, token=token, cache_dir=cache_dir, allow_patterns=[CONFIG, TENSORS]
        )
    except _refusals() as error:
        raise InputError(f"cannot download {repo_id}: {error}") from error
    try:
        return load_augmenter(folder, device=device) if kind is None else kind.load(folder, device=device)
    except (KeyError, TypeError) as error:
        raise InputError(f"{repo_id} holds a damaged model, or one of another version of cpaan: {error}") from error


def write_card(folder: Path, repo_id: str, *, license: str = "unknown") -> None:
    """Write a model card into the folder of a model; one that is there stays.

    >>> import numpy as np
    >>> from cpaan import PooledGaussian
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PooledGaussian().fit(np.eye(4), list("aabb")).save(folder)
    ...     write_card(Path(folder), "me/trees", license="mit")
    ...     (Path(folder) / "README.md").read_text().splitlines()[:3]
    ['---', 'library_name: cpaan', 'license: mit']
    """
    config = read_config(folder)
    if (folder / CARD).exists():
        return
    if not all(character.isalnum() or character in "-._" for character in license):
        raise InputError(f"license {license!r} is no name of a licence on the Hub, such as mit or cc-by-4.0")
    kept = read_shapes(folder / TENSORS).get("reservoir.deviations", (0,))[0]
    held = f"examples of base classes: {kept}" if kept else "summaries of base classes, no examples"
    lines = (
        *("---", "library_name: cpaan", f"license: {license}", "tags:", *(f"- {tag}" for tag in _TAGS), "---", ""),
        *(f"# {repo_id.rpartition('/')[2]}", ""),
        *("It makes synthetic features for classes with a handful of examples, with the Python package cpaan.", ""),
        *(f"- method: {config['kind']} {config.get('variant', '')}".rstrip(), f"- features: {config.get('dimension')}"),
        *(f"- base classes: {len(config.get('classes', []))}", f"- it holds: {held}", ""),
        *("```python", "from cpaan.hub import from_hub", "", f'augmenter = from_hub("{repo_id}")'),
        *("X_synthetic, y_synthetic = augmenter.augment(X_novel, y_novel)", "```", ""),
    )
    write_atomically(folder / CARD, "\n".join(lines).encode())


def _refusals() -> tuple[type[Exception], ...]:
    """Give what the library raises for a wrong name, a missing repository, no network or no permission."""
    errors = import_extra("huggingface_hub.errors", _PURPOSE)
    return errors.HfHubHTTPError, errors.HFValidationError, OSError
