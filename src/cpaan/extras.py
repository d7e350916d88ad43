"""Libraries that not everyone needs: imported when they are used, and asked for by name where they are missing."""

from importlib import import_module
from types import ModuleType

from cpaan.errors import InputError

# Library → the extra that it comes with.
EXTRAS = {
    "dask": "cluster",
    "huggingface_hub": "hub",
    "matplotlib": "report",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "tune",
    "pyarrow": "parquet",
    "tensorboard": "tensorboard",
}


def import_extra(module: str, purpose: str, library: str | None = None) -> ModuleType:
    """Import a module of a library that may be missing.

    Parameters
    ----------
    module : str
        Full name of the module.
    purpose : str
        What it is needed for, as the subject of the message: "a parquet file", "--log tensorboard".
    library : str, optional
        The library that is to be installed, where it is not the first part of the module's name.

    Returns
    -------
    module
        The module.

    Raises
    ------
    InputError
        Where the library is missing; the message says what to install.

    Examples
    --------
    >>> import_extra("json", "a test").dumps([1])
    '[1]'
    >>> import_extra("no_such_library", "a test")
    Traceback (most recent call last):
    ...
    cpaan.errors.InputError: a test needs no_such_library: pip install no_such_library
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(library or module.partition(".")[0], purpose) from error


def missing_extra(library: str, purpose: str) -> InputError:
    """Give the message for a library that is missing.

    >>> print(missing_extra("pyarrow", "a parquet file"))
    a parquet file needs pyarrow: pip install 'cpaan[parquet]'
    """
    extra = EXTRAS.get(library)
    package = library if extra is None else f"'cpaan[{extra}]'"
    return InputError(f"{purpose} needs {library}: pip install {package}")
