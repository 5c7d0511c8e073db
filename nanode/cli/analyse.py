"""``nanode analyse``: the stability of a trained model's flows, on one page."""

from pathlib import Path
from typing import Literal

from nanode.training import analyse_run
from nanode.training.files import check_writable


def command(
    run: Path,
    /,
    *,
    out: Path | None = None,
    samples: int = 2,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    data_root: Path | None = None,
) -> None:
    """Analyse every flow of a finished run with its final weights, in eval mode.

    State transition, sensitivity, Jacobian, gradients, growth rates, weights and bases: figures in
    analysis.png, numbers in analysis.json.

    Parameters
    ----------
    run
        The folder of the run.
    out
        The folder for the page and its numbers; by default the folder analysis of the run.
    samples
        How many held-out images to look at, one by one; of a video run, first frames of clips.
    device
        Where to compute; by default as in training.
    data_root
        Where data sets are; by default as in training.
    """
    target = run / "analysis" if out is None else out
    check_writable(target)
    root = None if data_root is None else str(data_root)
    found = analyse_run(run, target, samples=samples, device=device, data_root=root)
    for name, flow in found.flows.items():
        how = "" if flow.exact else ", estimated"
        print(f"{name or 'flow'} (a state of {flow.size:,}; {flow.of}{how})")
        for n, sample in enumerate(flow.samples):
            print(
                f"  sample {n}: largest singular value of Φ(t1, t0) "
                f"{float(sample.transition.values[-1, 0]):.4g}, "
                f"growth rate of a random change {float(sample.growth.rates[-1, 0]):.4g}, "
                f"gradient at the start over the end {sample.gradients.growth:.4g}"
            )
    print(f"the page is {target / 'analysis.png'}, its numbers {target / 'analysis.json'}")
