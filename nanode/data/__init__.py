"""Images and their labels: where they come from, how they are split, and batches of them."""

from nanode.data.augment import Augmentation, Crop, Cutout, Flip
from nanode.data.batches import Batches
from nanode.data.catalogue import SOURCES, load
from nanode.data.images import ImageData, Images, channel_statistics
from nanode.data.source import DataError, data_root

__all__ = [
    "SOURCES",
    "Augmentation",
    "Batches",
    "Crop",
    "Cutout",
    "DataError",
    "Flip",
    "ImageData",
    "Images",
    "channel_statistics",
    "data_root",
    "load",
]
