"""Checkpoints: weights as safetensors, the rest as a file that loads without running code.

A run folder keeps the last checkpoint, the best weights on validation and the final ones:

    checkpoints/step-00001408/weights.safetensors   the model, and the average under ``average/``
    checkpoints/step-00001408/state.pt              optimizer, random state, position, curves
    best.safetensors, final.safetensors             what is evaluated: averaged weights and buffers
"""

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nanode.training.files import remove_halves, write_atomically

#: The files of a checkpoint.
CHECKPOINT = WEIGHTS, STATE = "weights.safetensors", "state.pt"
_AVERAGE = "average/"


class Unreadable(ValueError):
    """A checkpoint that nothing can go on from."""


def save_weights(path: Path, tensors: dict[str, Tensor], **notes: Any) -> None:
    """Write named tensors, all or nothing, with notes in the file's header."""
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    own = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    # As one: of several, safetensors writes them in another order each time.
    header = {"notes": json.dumps(notes)} if notes else None

    def write(half: Path) -> None:
        # As other files are: safetensors' own writing keeps all but the owner from reading.
        half.write_bytes(save(own, metadata=header))

    write_atomically(path, write)


def load_weights(path: Path, model: nn.Module) -> None:
    """Put the weights of a file into a model."""
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as why:
        raise ValueError(f"the weights in {path} don't fit the model: {why}") from why


def weights_notes(path: Path) -> dict[str, Any]:
    """The notes in the header of a file of weights."""
    try:
        with safe_open(path, framework="pt") as file:
            notes: dict[str, Any] = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (OSError, SafetensorError, ValueError) as why:
        raise ValueError(f"the weights in {path} can't be read: {why}") from why
    if not notes:
        raise ValueError(
            f"{path} lacks the notes that training writes into its header; files that another "
            "program has saved again have none"
        )
    return notes


def save_checkpoint(
    folder: Path, setup: Any, progress: Any, average: dict[str, Tensor], **more: Any
) -> Path:
    """Write where a run is, and ``more`` of its state, then remove the checkpoints before it."""
    target = folder / "checkpoints" / f"step-{progress.step:08d}"
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        named = setup.model.state_dict() | {f"{_AVERAGE}{name}": w for name, w in average.items()}
        state = {
            "optimizer": setup.optimizer.state_dict()["state"],
            "random": {"cpu": torch.get_rng_state()},
            "progress": asdict(progress),
        } | more
        if setup.fabric.device.type == "cuda":
            state["random"]["cuda"] = torch.cuda.get_rng_state(setup.fabric.device)

        def write(half: Path) -> None:
            half.mkdir()
            save_weights(half / WEIGHTS, named)
            # By way of memory: of a full disk torch.save says nothing that could be understood.
            plain = io.BytesIO()
            torch.save(state, plain)
            (half / STATE).write_bytes(plain.getvalue())

        write_atomically(target, write)
    for other in _checkpoints(folder):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    remove_halves(target.parent)
    return target


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    return max(_checkpoints(folder), key=lambda path: int(path.name[5:]), default=None)


def _checkpoints(folder: Path) -> list[Path]:
    """All of a run folder; what else is beside them, such as step-backup, is somebody's own."""
    found = (folder / "checkpoints").glob("step-*")
    return [path for path in found if re.fullmatch(r"step-[0-9]{8,}", path.name)]


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Say of what goes wrong inside that the last checkpoint of a run folder is at fault.

    Unless it is the disk's, the device's or a lack of memory.
    """
    try:
        yield
    except (Unreadable, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as why:
        disk = isinstance(why, OSError) and not isinstance(why, FileNotFoundError)
        if disk or any(words in str(why) for words in ("CUDA", "cuBLAS", "cuDNN")):
            raise
        # Many of these messages say little alone: 'batches' of a KeyError, nothing of an EOFError.
        reason = f"{type(why).__name__}: {why}".removesuffix(": ")
        raise Unreadable(
            f"the checkpoint {last_checkpoint(folder)} can't be read ({reason}); delete it to "
            "start over"
        ) from why


def load_checkpoint(folder: Path, setup: Any) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Bring weights, optimizer and random state to the last checkpoint of a run folder.

    Returns the averaged weights in it and its state; None where a run was interrupted before.
    """
    checkpoint = last_checkpoint(folder)
    if checkpoint is None:
        return None
    with reading(folder):
        state = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
        named = load_file(checkpoint / WEIGHTS)
        average = {
            name.removeprefix(_AVERAGE): named.pop(name)
            for name in list(named)
            if name.startswith(_AVERAGE)
        }
        try:
            setup.model.load_state_dict(named)
        except RuntimeError as why:
            raise Unreadable(
                f"the checkpoint {checkpoint} is of another model: {why}; delete it to start over"
            ) from why
        groups = setup.optimizer.state_dict()["param_groups"]
        setup.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        torch.set_rng_state(state["random"]["cpu"])
    if setup.fabric.device.type == "cuda" and "cuda" in state["random"]:
        torch.cuda.set_rng_state(state["random"]["cuda"], setup.fabric.device)
    return average, state
