"""The models of the paper's video table by name, at any size and with any flow.

``svg`` has ordinary layers throughout. In the others each run of channel-preserving layers is one
flow: its field holds the layers, and three Euler steps of 1/3 take x through it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from nanode.block import ODEBlock
from nanode.fields import BatchNorm
from nanode.models.flows import Flows
from nanode.models.video.recurrent import Gaussian, Predictor
from nanode.models.video.svg import ENCODES, SKIPS, SVG
from nanode.models.video.vgg import REDUCTION, VGG_64, Decoder, Encoder, MakeRun, layer
from nanode.values import check_choice, checked_count

#: The flow in each model: a name of ``nanode.models.names()``, or none.
NAMES: dict[str, str | None] = {"svg": None, "svg-auto": "auto", "svg-nanode": "t-nanode-3"}
#: Evaluations of a flow's field: dt = 1/3.
EVALUATIONS = 3
#: The spread of weights and of norm scales at the start.
SPREAD = 0.02


def create(
    name: str,
    *,
    channels: int = 1,
    size: int = 64,
    width: int = 64,
    convs_per_stage: int | Sequence[int] | None = None,
    g_dim: int = 128,
    z_dim: int = 10,
    rnn_size: int = 256,
    predictor_layers: int = 2,
    posterior_layers: int = 1,
    prior_layers: int = 1,
    skip: str = "original",
    encode: str = "batch",
    channels_last: bool = False,
    flow: str | None = None,
    steps: int | None = None,
    solver: str | None = None,
    gradient: str | None = None,
    scale: float | None = None,
    moving_norms: bool | None = None,
    compile: bool | None = None,
) -> SVG:
    """A video model by name: ``svg``, ``svg-auto`` or ``svg-nanode``.

    Args:
        name: which of the three.
        channels: of a frame.
        size: the side of a frame, a multiple of 16.
        width: channels of the first stage; 64 is the public SVG, 16 has the weights of the paper's
            memory figures.
        convs_per_stage: layers in each of the encoder's four stages, one number for all or four;
            the decoder mirrors them. By default 2, 2, 3, 3.
        g_dim: features of a frame.
        z_dim: latents of a frame.
        rnn_size: the hidden size of the recurrent parts.
        predictor_layers: LSTM layers of the predictor, and so on.
        posterior_layers: as above.
        prior_layers: as above.
        skip: whose skips predicted frames are decoded with; see ``nanode.models.video.svg``.
        encode: frames through encoder and decoder as one ``batch``, or time by time (``frame``).
        channels_last: compute in that memory layout.
        flow: another row of ``nanode.models.names()`` in place of the name's own.
        steps: evaluations of a flow's field, whatever the solver; by default 3, or enough for a
            step in each of the row's buckets.
        solver: by name, as for classifiers; by default ``euler``.
        gradient: by name; by default ``backprop``.
        scale: of a flow's step; by default 1, or the number of steps for residual rows.
        moving_norms: whether norm scales and shifts move too; by default they don't, but for
            ``uncon-resnet``, whose layers have their own.
        compile: compile each flow's field (``ODEBlock(compile=True)``).

    >>> model = create("svg-nanode", width=16)
    >>> sum(p.numel() for p in model.parameters())
    7319465
    """
    check_choice("model", name, NAMES)
    own = NAMES[name]
    options: dict[str, Any] = {
        "flow": flow,
        "steps": steps,
        "solver": solver,
        "gradient": gradient,
        "scale": scale,
        "moving_norms": moving_norms,
        "compile": compile,
    }
    given = {key: value for key, value in options.items() if value is not None}
    if own is None and given:
        raise ValueError(f"{name} has no flows: leave out {', '.join(given)}")
    counts = {
        "channels": channels,
        "width": width,
        "g_dim": g_dim,
        "z_dim": z_dim,
        "rnn_size": rnn_size,
        "predictor_layers": predictor_layers,
        "posterior_layers": posterior_layers,
        "prior_layers": prior_layers,
    }
    for key, value in counts.items():
        checked_count(key, value, least=1)
    if checked_count("size", size, least=1) % REDUCTION:
        raise ValueError(
            f"size must be a multiple of {REDUCTION}, since the encoder halves it four times and "
            f"reads the rest at once; got {size}: crop or resize the frames"
        )
    check_choice("skip", skip, SKIPS)
    check_choice("encode", encode, ENCODES)
    layers = _layers(convs_per_stage)
    make_run = _plain if own is None else _flows(**{"flow": own} | given)
    shape = (channels, width, g_dim, size, layers, make_run)
    parts = (
        Encoder(*shape),
        Decoder(*shape),
        Gaussian(g_dim, z_dim, rnn_size, posterior_layers),
        Gaussian(g_dim, z_dim, rnn_size, prior_layers),
        Predictor(g_dim + z_dim, g_dim, rnn_size, predictor_layers),
    )
    for part in parts:
        initialise(part)
    return SVG(
        *parts,
        channels=channels,
        size=size,
        skip=skip,
        encode=encode,
        channels_last=channels_last,
    )


def initialise(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02) and norm scales from N(1, 0.02), biases 0; LSTMs stay.

    Flows are left alone: the network in a field is initialised before its weights move, so that a
    moving weight's constant part starts as that weight would.
    """
    if isinstance(module, ODEBlock | nn.LSTM):
        return
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear | nn.BatchNorm2d | BatchNorm):
        mean = 1.0 if isinstance(module, nn.BatchNorm2d | BatchNorm) else 0.0
        nn.init.normal_(module.weight, mean, SPREAD)
        assert module.bias is not None
        nn.init.zeros_(module.bias)
    for child in module.children():
        initialise(child)


def _layers(given: int | Sequence[int] | None) -> tuple[int, ...]:
    """Layers in each stage of the encoder."""
    if given is None:
        return VGG_64
    counts = tuple(given) if isinstance(given, Sequence) else (given,) * len(VGG_64)
    if len(counts) != len(VGG_64):
        raise ValueError(
            f"convs_per_stage must be one number or {len(VGG_64)} of them, got {given!r}"
        )
    for count in counts:
        checked_count("convs_per_stage", count, least=2)
    return counts


def _plain(width: int, count: int) -> nn.Module:
    """A run as ordinary layers."""
    return nn.Sequential(*(part for _ in range(count) for part in layer(width, width)))


def _flows(
    flow: str, steps: int | None = None, moving_norms: bool | None = None, **options: Any
) -> MakeRun:
    """Makes each run as a flow whose field holds its layers."""
    # By default norms stand still, but for those of layers that are each their own.
    moving = flow.startswith("uncon-resnet") if moving_norms is None else moving_norms
    flows = Flows(flow, steps, EVALUATIONS, moving_norms=moving, **options)

    def make(width: int, layers: int) -> nn.Module:
        block = flows.block(_network(layers), width)
        if block.augment:
            raise ValueError(f"{flow} widens the state, which the next layer doesn't expect")
        return block

    return make


def _network(layers: int) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        parts = [part for _ in range(layers) for part in layer(width, width, BatchNorm)]
        network = nn.Sequential(*parts)
        initialise(network)
        return network

    return make
