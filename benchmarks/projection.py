"""What is left of a trained flow in fewer coefficients, and written out as layers.

    python benchmarks/projection.py --epochs 40

Trains T-NANODE-10 on the digits that come with the package, projects its weights to smaller bases
and measures test accuracy again: with the norms' statistics as they were, and found anew on
training images. Nothing is trained after the projection. One JSON line a row.
"""

import argparse
import copy
import json
import platform
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import nanode
from nanode.block import flows
from nanode.training import calibrate, load_model, recipe, train
from nanode.training.evaluation import score
from nanode.training.setup import (
    later_images,
    load_data,
    make_fabric,
    training_batches,
)

BASES = {
    "trigonometric, order 10": None,
    **{f"legendre, degree {n}": nanode.Legendre(n) for n in (6, 4, 3, 2, 1)},
    **{f"buckets, {n}": nanode.Bucketed(n) for n in (10, 5, 2)},
    "constant": nanode.Constant(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--model", default="t-nanode-10")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(json.dumps({"torch": torch.__version__, "machine": platform.machine(), **vars(given)}))
    for seed in range(given.seeds):
        base = replace(recipe("digits-tiny"), model=given.model, epochs=given.epochs, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(replace(base, progress=False), run)
            model, config = load_model(run)
            for name, basis in BASES.items():
                found = model if basis is None else nanode.project(model, basis)
                print(json.dumps(row(name, seed, model, found, config)), flush=True)


def row(name, seed, model, found, config):
    fabric, data = make_fabric(config), load_data(config)
    batches = training_batches(config, data.train)
    anew = copy.deepcopy(found)
    images = later_images(batches, config.epochs, config.calibration)
    with fabric.autocast():
        calibrate(anew, anew, images)
    errors = nanode.projection_errors(model, found).values()
    (block,) = flows(found).values()
    return {
        "basis": name,
        "seed": seed,
        "parameters of the flow": sum(p.numel() for p in block.parameters()),
        "largest error": max(errors),
        "test accuracy": score(found.eval(), data.test, config, fabric).accuracy,
        "statistics found anew": score(anew.eval(), data.test, config, fabric).accuracy,
        "layers off by": apart(block),
    }


@torch.no_grad()
def apart(block):
    """The largest difference of the block written out as layers, on one random batch."""
    features = block.field.module[0].features
    x = torch.randn(8, features, 8, 8, generator=torch.Generator().manual_seed(0))
    return float((nanode.materialise(block.eval())(x) - block(x)).abs().max())


if __name__ == "__main__":
    main()
