"""The text as bytes: its last twentieth is for validation, the rest is trained on, in windows that a seed chooses."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
from typing import Optional

import torch

from .errors import TrainGptError

VALIDATION_SHARE = 20  # one byte in 20
BIBLE = ("bible", "-f", "gen1:1-rev22:21")


def verses() -> bytes:
    """The King James Bible, a verse a line, without the references that the program `bible` prints first."""
    try:
        found = subprocess.run(BIBLE, capture_output=True, check=False).stdout
    except OSError:
        found = b""
    lines = [line.split(b" ", 1) for line in found.splitlines()]
    text = b"".join(line[1] + b"\n" for line in lines if len(line) == 2)
    if len(text) < 1_000_000:
        raise TrainGptError(
            "the program `bible` did not print the King James Bible: install Debian's packages bible-kjv and "
            "bible-kjv-text, or give another text with --text FILE"
        )
    return text


def read_text(path: Optional[pathlib.Path]) -> bytes:
    if path is None:
        return verses()
    try:
        return path.read_bytes()
    except OSError as error:
        raise TrainGptError(f"--text {path}: {error.strerror}: give a file that can be read") from None


@dataclasses.dataclass
class Text:
    """Bytes on the device, to take windows of."""

    train: torch.Tensor
    validation: torch.Tensor

    @staticmethod
    def on(device: torch.device, text: bytes, window: int) -> "Text":
        """`window` is the number of bytes that the model sees at once. Raises TrainGptError for a text too short."""
        least = 2 * VALIDATION_SHARE * (window + 1)
        if len(text) < least:
            raise TrainGptError(
                f"the text has {len(text)} bytes, and windows of {window} need {least}: take a longer one"
            )
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        cut = len(text) - len(text) // VALIDATION_SHARE
        return Text(data[:cut], data[cut:])

    def windows(self, seed: int, steps: int, batch: int, window: int) -> "Windows":
        """The windows of a run: (steps, batch) places, the same for every variant."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(self.train) - window, (steps, batch), generator=generator)
        return Windows(self.train, starts.to(self.train.device), window)

    def validation_windows(self, batch: int, window: int, batches: int) -> "Windows":
        """Evenly spread windows, the same for every seed."""
        count = batch * batches
        starts = torch.linspace(0, len(self.validation) - window - 1, count).long().view(batches, batch)
        return Windows(self.validation, starts.to(self.validation.device), window)


@dataclasses.dataclass
class Windows:
    data: torch.Tensor
    starts: torch.Tensor
    window: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs and targets, which are the bytes after them, each (batch, window) of int64."""
        places = self.starts[step][:, None] + torch.arange(self.window + 1, device=self.data.device)
        found = self.data[places].long()
        return found[:, :-1], found[:, 1:]
