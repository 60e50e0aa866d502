"""What the subpackages for PyTorch ask of it."""


def require_pytorch(package: str) -> None:
    """Raises ImportError, in one sentence, if there is no PyTorch 2.7 or newer."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{package} needs PyTorch 2.7 or newer, which cannot be imported: {error}") from error
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7):
        raise ImportError(f"{package} needs PyTorch 2.7 or newer, and this is {torch.__version__}: upgrade it")
