"""A Mac's GPU in small, on a CPU: what works on it needs nothing that the real one lacks.

Tensors there hold a tensor on the host and say that they are on "mps". As by torch 2.13 they have
single precision at most, can't be moved and widened in one step, don't mix with tensors of the
host, and lack some decompositions; their random numbers come from a generator of their own.
"""

from contextlib import contextmanager
from functools import partial, wraps

import torch

# Both keep torch.zeros and the like as they find them, so they come before these are replaced.
import torch._decomp.decompositions_for_jvp
import torch._dynamo
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

WIDE = (torch.float64, torch.complex128)
#: What has no kernel there.
MISSING = ("eigh", "eig", "eigvals", "svd", "qr", "matrix_exp", "take")
#: What may be given tensors of both devices.
MIXING = ("copy_", "index", "index_put_")
MAKERS = (
    *("arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "rand", "rand_like", "randn", "randn_like", "tensor", "zeros", "zeros_like"),
)


class OnApple(torch.Tensor):
    """A tensor there. Torch's own code takes it for one on the host, but has to ask us for all."""

    @staticmethod
    def __new__(cls, host):
        _refuse_wide(host.dtype)
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        return cls._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, **layout)

    def __init__(self, host):
        self.host = host

    def __repr__(self):
        return f"OnApple({self.host})"

    def tolist(self):
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        name, kwargs = function.overloadpacket.__name__, kwargs or {}
        if name.removeprefix("_").removeprefix("linalg_") in MISSING:
            raise NotImplementedError(f"the operator 'aten::{name}' has no kernel for MPS")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # What autograd makes itself, where it takes us to be, are zeros.
        others = [a for a in given if not isinstance(a, OnApple) and a.is_cpu and a.ndim]
        if name not in MIXING and any(a.any() for a in others):
            raise RuntimeError(f"{name}: expected all tensors on one device, found mps:0 and cpu")
        hosts, named = tree_map_only(OnApple, lambda a: a.host, (args, kwargs))
        with _drawing(torch.Tag.nondeterministic_seeded in function.tags):
            found = tree_map_only(torch.Tensor, OnApple, function(*hosts, **named))
        return return_and_correct_aliasing(function, args, kwargs, found)


class _Moved(torch.autograd.Function):
    """A copy on the other device."""

    @staticmethod
    def forward(x):
        return x.host.clone() if isinstance(x, OnApple) else OnApple(x.detach().clone())

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return _Moved.apply(grad)

    @staticmethod
    def jvp(ctx, tangent):
        return _Moved.apply(tangent)

    @staticmethod
    def vmap(info, in_dims, x):
        return _Moved.apply(x), in_dims[0]


def pretend(monkeypatch):
    """Have torch know the device for as long as this lasts."""
    _device_constructors()  # keeps torch.zeros and the like, too
    real_device, real_to = torch.Tensor.device, torch.Tensor.to

    def device(x):
        while torch._C._functorch.is_functorch_wrapped_tensor(x):
            x = torch._C._functorch.get_unwrapped(x)
        return torch.device("mps:0") if isinstance(x, OnApple) else real_device.__get__(x)

    def to(x, *args, copy=False, **kwargs):
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        here = x.device.type == "mps"
        there = here if device is None else device.type == "mps"
        if here or there:
            _refuse_wide(dtype or x.dtype)
        if here == there and not here:
            return real_to(x, *args, copy=copy, **kwargs)
        x = real_to(x, dtype or x.dtype, copy=copy)
        return x if here == there else _Moved.apply(x)

    def made(make, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != "mps":
            return make(*args, device=device, **kwargs)
        with _drawing("rand" in make.__name__):
            return make(*args, device="cpu", **kwargs).to(device)

    # Modules exchange parameters, where they would have put the one's memory into the other.
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    monkeypatch.setattr(torch.Tensor, "device", property(device))
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: x.to("cpu"))
    for name in MAKERS:
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, wraps(make)(partial(made, make)))
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: generator.get_state())
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda s, device: generator.set_state(s))


@contextmanager
def _drawing(there):
    """Where random numbers are drawn by the device's generator, if they are."""
    if there:
        ours, theirs = torch.get_rng_state(), torch.mps.get_rng_state("mps")
        torch.set_rng_state(theirs)
    yield
    if there:
        torch.mps.set_rng_state(torch.get_rng_state(), "mps")
        torch.set_rng_state(ours)


def _refuse_wide(dtype):
    if dtype in WIDE:
        raise TypeError("can't convert a MPS tensor to float64: MPS doesn't support it")
