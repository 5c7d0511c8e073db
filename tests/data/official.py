"""Synthetic data in the exact layout of the official files, and the facts to expect of them."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np

from nanode.data.cifar import CIFAR10, CIFAR100
from nanode.data.idx import MNIST


def facts(file, content, urls=None):
    """The official file with the size and checksums of other content."""
    return replace(
        file,
        size=len(content),
        md5=hashlib.md5(content).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
        urls=file.urls if urls is None else urls,
    )


def tar_of(members):
    """A .tar.gz of named contents; a content that is a TarInfo goes in as it is."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def small_cifar(source, records=20):
    """A CIFAR source whose files are short, and the bytes of each file.

    Record k of file number n has label (k + n) mod classes, and k + n in every pixel of red, one
    more in green and in blue.
    """
    source = replace(
        source,
        train=dict.fromkeys(source.train, records),
        test=dict.fromkeys(source.test, records),
    )
    files = {}
    for number, name in enumerate({**source.train, **source.test}):
        value = (np.arange(records) + number)[:, None]
        coarse = np.full((records, source.label_bytes - 1), 255)  # never read
        label = value % len(source.classes)
        pixels = np.repeat(value + np.arange(3), 32 * 32, axis=1)
        files[name] = np.concatenate([coarse, label, pixels], 1).astype(np.uint8).tobytes()
    return source, files


def cifar_archive(source, files):
    """The archive of these batch files, with the other members that the official one has."""
    members = {f"{source.folder}/{name}": content for name, content in files.items()}
    content = tar_of({f"{source.folder}/readme.html": b"<html>", **members})
    return replace(source, archive=facts(source.archive, content)), content


def idx_of(values):
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def small_mnist(train=30, test=20, source=MNIST):
    """An idx source whose files are short, and the compressed bytes of each file."""
    generator = np.random.default_rng(0)
    arrays = []
    for count in (train, test):
        arrays += [generator.integers(0, 256, (count, 28, 28)), np.arange(count) % 10]
    contents = [gzip.compress(idx_of(array), mtime=0) for array in arrays]
    files = [facts(file, content) for file, content in zip(source.files, contents, strict=True)]
    small = replace(source, files=tuple(files), train=train, test=test)
    return small, {file.name: content for file, content in zip(files, contents, strict=True)}


SETS = {"cifar10": CIFAR10, "cifar100": CIFAR100}
