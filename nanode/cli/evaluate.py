"""``nanode evaluate``: a trained model's numbers once more, from its stored weights."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from nanode.training import RunRecord, evaluate
from nanode.training.files import check_writable, write_json
from nanode.training.video import evaluate_video, is_video_run


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """What ``evaluate_video`` alone takes; where None, its own default holds."""

    sequences: int | None = None
    """Video: how many clips; 256 by default."""
    samples: int | None = None
    """Video: how many predictions of each clip; 100 by default."""
    n_past: int | None = None
    """Video: frames that are given; by default as in training."""
    length: int | None = None
    """Video: frames of a clip; by default the run's n_eval."""
    data: str | None = None
    """Video: another data set than the run's."""
    seed: int | None = None
    """Video: of the samples; 0 by default."""
    norms: Literal["stored", "batch"] | None = None
    """Video: stored norm statistics, or those of each batch, as the original SVG generates."""


DEFAULT = VideoOptions()


def command(
    run: Path,
    /,
    *,
    split: Literal["test", "validation", "train"] = "test",
    device: Literal["auto", "cpu", "cuda"] | None = None,
    data_root: str | None = None,
    video: Annotated[VideoOptions, Parameter(name="*")] = DEFAULT,
    out: Path | None = None,
) -> None:
    """Measure the final weights of a finished run, with their stored norm statistics.

    Of an image classifier loss and accuracy; of a video model PSNR and SSIM of predicted frames,
    for the sample of each clip with the best mean SSIM; its −ELBO is in run.json.

    Parameters
    ----------
    run
        The folder of the run.
    split
        The images or clips to measure on; validation is of images only.
    device
        Where to compute; by default as in training.
    data_root
        The folder of the data sets; by default as in training.
    out
        Video: a JSON file for all numbers.
    """
    given = {name: value for name, value in asdict(video).items() if value is not None}
    if is_video_run(run):
        _video(run, out, split=split, device=device, data_root=data_root, **given)
        return
    if given or out is not None:
        names = [*given, *(["out"] if out is not None else [])]
        raise ValueError(f"{run} is no video run, which alone takes --{', --'.join(names)}")
    _image(run, split, device, data_root)


def _image(run: Path, split: str, device: str | None, data_root: str | None) -> None:
    found = evaluate(run, split, device, data_root)
    print(f"{split:10} {found.accuracy:7.2%}  loss {found.loss:.4f}")
    recorded = getattr(RunRecord.load(run / "run.json").metrics, f"{split}_accuracy", None)
    if recorded is not None:
        print(f"{'run.json':10} {recorded:7.2%}")


def _show(there: int, count: int) -> None:
    """How far it is, on a terminal: as many samples as others publish take long."""
    if sys.stderr is not None and sys.stderr.isatty():
        end = "\n" if there == count else ""
        print(f"\r{there} of {count} clips", end=end, file=sys.stderr, flush=True)


def _video(run: Path, out: Path | None, **options: Any) -> None:
    if out is not None:
        if out.is_dir():
            raise ValueError(f"out must be a JSON file, and {out} is a folder")
        check_writable(out.parent)
    found = evaluate_video(run, progress=_show, **options)
    print(f"{found.sequences} clips of {found.data} {found.split}, best of {found.samples} samples")
    print("frame   PSNR, dB    SSIM")
    for n, (ratio, similar) in enumerate(zip(found.psnr, found.ssim, strict=True)):
        print(f"{found.n_past + n + 1:5} {ratio:10.2f} {similar:7.4f}")
    print(f" mean {found.best_psnr:10.2f} {found.best_ssim:7.4f}")
    error, similar = found.openstl_mse, found.openstl_ssim
    print(f"OpenSTL, at the latents' means: MSE {error:.2f}, SSIM {similar:.4f}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, asdict(found))
        print(out)
