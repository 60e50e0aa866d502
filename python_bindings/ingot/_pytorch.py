"""Checks of PyTorch for the subpackages that need it."""

OLDEST = (2, 7)


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Is this version of PyTorch, such as "2.11.0+cu130", older than `than`?"""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < than


def require_import(package: str) -> None:
    """Raises ImportError, in one sentence, if there is no PyTorch."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{package} needs PyTorch 2.7 or newer, which cannot be imported: {error}") from error


def require_pytorch(package: str) -> None:
    """Raises ImportError, in one sentence, if there is no PyTorch 2.7 or newer."""
    require_import(package)
    import torch

    if is_older(torch.__version__, OLDEST):
        raise ImportError(f"{package} needs PyTorch 2.7 or newer, and this is {torch.__version__}: upgrade it")
