#!/usr/bin/env bash
# What: persistent_workers=True, an option of speed, changes the order in which a shuffling
#   DataLoader with a generator gives its samples, from the second epoch on. The loader draws a
#   seed for its workers from the generator from which the sampler draws the permutation. It does
#   so in each epoch without persistent workers (and without workers at all), but only in the
#   first one with them. Losses of a run with the same seed differ from the second epoch on.
# Version: torch 2.15.0.
# Why it matters: some programs compare two runs bit by bit, resume one with other loader options,
#   or know the order of an epoch before it begins (to read rows ahead, to place rows by their
#   next use). They have to count these draws: one before each epoch, and none before later ones
#   with persistent workers.
# Source: torch/utils/data/dataloader.py of torch 2.15.0: _BaseDataLoaderIter.__init__ draws
#   _base_seed from loader.generator, _reset, which begins later epochs of workers that stay, does
#   not. The page of torch.utils.data says that persistent_workers keeps the workers and their
#   dataset instances alive, and nothing of the order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 numpy==2.4.6
cd "$folder"
cat > orders.py <<'PYTHON'
import sys

import torch
from torch.utils.data import DataLoader

SAMPLES, EPOCHS = 8, 3


def orders(**options):
    """What each epoch gives, of one loader with a generator of its own."""
    loader = DataLoader(
        range(SAMPLES), batch_size=SAMPLES, shuffle=True,
        generator=torch.Generator().manual_seed(1), **options,
    )
    return [batch.tolist() for _ in range(EPOCHS) for batch in loader]


if __name__ == "__main__":
    print("torch", torch.__version__)
    found = {
        "no workers": orders(),
        "one worker": orders(num_workers=1),
        "one that stays": orders(num_workers=1, persistent_workers=True),
    }
    for name, given in found.items():
        print(f"{name:15}", *given)
    none, one, stays = found.values()
    same = [a == b for a, b in zip(none, stays)]
    if one != none or same != [True, False, False]:
        sys.exit(f"the behaviour has changed: epochs of workers that stay are the same: {same}")

    # The order of the sampler alone, from the generator's draws: a seed before each epoch, or one.
    for name, epochs_with_seed in (("no workers", EPOCHS), ("one that stays", 1)):
        generator = torch.Generator().manual_seed(1)
        drawn = []
        for epoch in range(EPOCHS):
            if epoch < epochs_with_seed:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            drawn.append(torch.randperm(SAMPLES, generator=generator).tolist())
            torch.randperm(SAMPLES, generator=generator)  # the sampler's own last draw
        if drawn != found[name]:
            sys.exit(f"the draws have changed: {name} gives {found[name]}, expected {drawn}")
    print("as drawn: a seed before each epoch, and one alone with workers that stay")
PYTHON
"$folder/venv/bin/python" -W ignore orders.py
