"""Clips of frames: digits that move, made on the device, and real ones from record files."""

from nanode.data.video.catalogue import SOURCES, load
from nanode.data.video.clips import Clips, StoredClips, VideoData
from nanode.data.video.moving import Deterministic, Moving, Stochastic
from nanode.data.video.records import Records

__all__ = [
    "SOURCES",
    "Clips",
    "Deterministic",
    "Moving",
    "Records",
    "Stochastic",
    "StoredClips",
    "VideoData",
    "load",
]
