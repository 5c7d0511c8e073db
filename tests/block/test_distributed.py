"""Blocks under DistributedDataParallel."""

import os

import torch
import torch.distributed
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.block.common import EXACT, make
from tests.gradients.models import DOUBLE, distance


def _rank(rank, world, store, batch, weights, results):
    """One process: its share of the batch, gradients averaged by DDP."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    found = []
    for gradient, solver in EXACT:
        block = make(gradient, solver)
        block.load_state_dict(weights)
        model = DistributedDataParallel(block)
        model(batch.chunk(world)[rank]).square().mean().backward()
        found.append([p.grad.clone() for p in block.parameters()])
    if rank == 0:
        torch.save(found, results)
    torch.distributed.barrier()
    # Now and then gloo's threads abort a process that ends as others do, with any model.
    os._exit(0)


def test_distributed_data_parallel(tmp_path):
    block = make()
    batch = torch.randn(8, 3, dtype=DOUBLE)
    torch.multiprocessing.spawn(
        _rank,
        args=(2, tmp_path / "store", batch, block.state_dict(), tmp_path / "found"),
        nprocs=2,
    )
    found = torch.load(tmp_path / "found")
    for (gradient, solver), got in zip(EXACT, found, strict=True):
        reference = make(gradient, solver)
        reference.load_state_dict(block.state_dict())
        # Both halves are equally large, so the mean of their means is the mean.
        reference(batch).square().mean().backward()
        expected = {n: p.grad for n, p in reference.named_parameters()}
        assert distance(dict(zip(expected, got, strict=True)), expected) < 1e-12
