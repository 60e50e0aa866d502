#!/usr/bin/env python3
"""Trains a small GPT on bytes of text in PyTorch, in bf16 and with linear layers in FP8 by Ingot, and compares them.

    python3 examples/train_gpt.py --out build/gpt                     # losses: bf16's seeds, then every recipe
    python3 examples/train_gpt.py --compare --out build/gpt_speed     # tokens/s against torch.compile and torchao
    python3 examples/train_gpt.py --size tiny --device cpu --steps 20 --out build/gpt_tiny    # does it run
    python3 examples/train_gpt.py --replot build/gpt.json             # draws the plot again; needs matplotlib only

A variant names who computes the linear layers of the blocks, the recipe, and whether blocks are compiled:

    torch:bf16  torch:bf16+compile  ingot:rowwise  ingot:tensorwise+compile  float8:delayed  torchao:rowwise+compile

`ingot` is ingot.nn, `float8` is ingot.float8, and `torchao` needs torchao. Variants that cannot run here are left out,
with the reason. Everything else, down to the order of the text, is the same for all.

The text is the King James Bible of Debian's packages bible-kjv and bible-kjv-text, or a file (--text).
docs/training.md says what the figures mean. Exit codes: 0; 1 for errors, and with --strict where something that is to
hold does not; 2 for wrong options.
"""

import sys

from train_gpt.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__))
