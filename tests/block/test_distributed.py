"""Blocks under DistributedDataParallel and FSDP."""

import os

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import nanode
from tests.block.common import EXACT, make
from tests.block.test_norms import normed
from tests.gradients.models import DOUBLE, distance


def _by_two(job, folder, *inputs):
    """What the first of two processes finds that do the job together."""
    torch.multiprocessing.spawn(_process, args=(2, folder, job, inputs), nprocs=2)
    return torch.load(folder / "found")


def _process(rank, world, folder, job, inputs):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world
    )
    found = job(rank, world, *inputs)
    if rank == 0:
        torch.save(found, folder / "found")
    torch.distributed.barrier()
    # Now and then gloo's threads abort a process that ends as others do, with any model.
    os._exit(0)


def _replicated(rank, world, batch, weights):
    """One process: its share of the batch, gradients averaged by DDP."""
    found = []
    for gradient, solver in EXACT:
        block = make(gradient, solver)
        block.load_state_dict(weights)
        model = DistributedDataParallel(block)
        model(batch.chunk(world)[rank]).square().mean().backward()
        found.append([p.grad.clone() for p in block.parameters()])
    for gradient, solver in EXACT:
        model = DistributedDataParallel(normed(gradient, solver))
        for _ in range(2):
            model(batch.chunk(world)[rank]).square().mean().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        found.append([*grads, *(b.clone() for b in model.module.buffers())])
    return found


def test_distributed_data_parallel(tmp_path):
    block = make()
    batch = torch.randn(8, 3, dtype=DOUBLE)
    found = _by_two(_replicated, tmp_path, batch, block.state_dict())
    _check_norms(batch, found[len(EXACT) :])
    for (gradient, solver), got in zip(EXACT, found[: len(EXACT)], strict=True):
        reference = make(gradient, solver)
        reference.load_state_dict(block.state_dict())
        # Both halves are equally large, so the mean of their means is the mean.
        reference(batch).square().mean().backward()
        expected = {n: p.grad for n, p in reference.named_parameters()}
        assert distance(dict(zip(expected, got, strict=True)), expected) < 1e-12


def _check_norms(batch, found):
    """Each process normalises by its own share, and its statistics move once a pass.

    DDP hands out the first process's statistics at the start of every pass.
    """
    for (gradient, solver), got in zip(EXACT, found, strict=True):
        blocks = [normed(nanode.Backprop(), solver) for _ in range(2)]
        for _ in range(2):
            for block, share in zip(blocks, batch.chunk(2), strict=True):
                block(share).square().mean().backward()
        pairs = zip(*(block.parameters() for block in blocks), strict=True)
        expected = [(a.grad + b.grad) / 2 for a, b in pairs]
        expected += list(blocks[0].buffers())
        for a, b in zip(got, expected, strict=True):
            assert (a - b).abs().max() < 1e-12, gradient


def _sharded(rank, world, batch, weights):
    """One process: its share of the batch and of every parameter, and penalties on all of them."""
    found = []
    for gradient, solver in EXACT:
        block = make(gradient, solver)
        block.load_state_dict(weights)
        fully_shard(block, mesh=init_device_mesh("cpu", (world,)))
        block(batch.chunk(world)[rank]).square().mean().backward()
        _penalties(block).backward()
        found.append([p.grad.full_tensor() for p in block.parameters()])
    return found


def _penalties(block):
    return nanode.coefficient_penalty(block) + nanode.function_penalty(block)


def _others(kind):
    """A block whose weights move by other trajectories than an expansion."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3).double()
    if kind == "orthogonal":
        field = nanode.TimeVarying(layer, nanode.Legendre(2), orthogonal=nanode.Skew())
    else:
        field = nanode.TimeVarying(layer, weights=nanode.Hypernetwork)
    with torch.no_grad():
        for p in field.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return nanode.ODEBlock(field, 2)


def _energies(block, kind):
    smooth = nanode.smoothness_penalty(block) if kind == "orthogonal" else 0.0
    return nanode.function_penalty(block) + smooth


def _sharded_others(rank, world):
    """Penalties before and after a solve, where each process has a part of every parameter."""
    found = {}
    for kind in ("orthogonal", "hypernetwork"):
        block = _others(kind)
        fully_shard(block, mesh=init_device_mesh("cpu", (world,)))
        _energies(block, kind).backward()
        block(torch.ones(2, 3, dtype=DOUBLE)).sum().backward()
        _energies(block, kind).backward()
        found[kind] = [p.grad.full_tensor() for p in block.parameters()]
    return found


def test_penalties_of_other_trajectories_sharded(tmp_path):
    for kind, got in _by_two(_sharded_others, tmp_path).items():
        block = _others(kind)
        (2 * _energies(block, kind) + block(torch.ones(2, 3, dtype=DOUBLE)).sum()).backward()
        expected = {n: p.grad for n, p in block.named_parameters()}
        assert distance(dict(zip(expected, got, strict=True)), expected) < 1e-12, kind


def test_fully_sharded(tmp_path):
    block = make()
    batch = torch.randn(8, 3, dtype=DOUBLE)
    found = _by_two(_sharded, tmp_path, batch, block.state_dict())
    for (gradient, solver), got in zip(EXACT, found, strict=True):
        reference = make(gradient, solver)
        reference.load_state_dict(block.state_dict())
        (reference(batch).square().mean() + _penalties(reference)).backward()
        expected = {n: p.grad for n, p in reference.named_parameters()}
        assert distance(dict(zip(expected, got, strict=True)), expected) < 1e-12
