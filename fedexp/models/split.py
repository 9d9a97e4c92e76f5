"""A network in two parts, and how to find the size of the seam between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedexp.errors import ConfigError

NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
SIDES = (28, 32, 64, 128, 224)  # of the papers' images; the first that is large enough is recommended
SMALL_BODY_BYTES = 64 * 2**20  # of weights; larger ones might not even fit into memory


class SplitModel(nn.Module):
    """A network whose last part, the classifier, is told apart from the features that feed it.

    Args:
        features: Maps samples to flat features [N, feature_dim].
        classifier: Maps features to logits [N, classes]; a single layer, or several where a paper counts them so.
        feature_dim: The width of the seam.
    """

    signed: bool | None = None  # whether features can be negative, as ``check_network`` found
    beside: nn.ModuleDict  # only there if a component has modules

    def __init__(self, features: nn.Module, classifier: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.feature_dim = feature_dim

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        logits: Tensor = self.classifier(self.features(x))
        return logits

    def put_beside(self, modules: Mapping[str, Mapping[str, nn.Module]]) -> None:
        """Takes up modules of components, by key and name, that are trained with the network and are no part of it."""
        named = {f"{key}/{name}": module for key, own in modules.items() for name, module in own.items()}
        if named:
            self.beside = nn.ModuleDict(named)

    def module_beside(self, key: str, name: str) -> nn.Module:
        """A component's module that lies beside the network."""
        full = f"{key}/{name}"
        if ("beside" not in self._modules) or full not in self.beside:
            own = [n for k, n in self.names_beside if k == key]
            raise LookupError(f"component {key!r} has no module {name!r}; its modules are {own}")
        return self.beside[full]

    @property
    def names_beside(self) -> list[tuple[str, str]]:
        """Component and name of each module that lies beside the network."""
        named = self.beside if "beside" in self._modules else ()
        return [(key, name) for key, _, name in (n.partition("/") for n in named)]

    def part_of(self, name: str) -> Literal["features", "classifier"]:
        """Returns the part that the parameter or buffer ``name`` belongs to."""
        return "classifier" if name.startswith("classifier.") else "features"

    def is_norm(self, name: str) -> bool:
        """Says whether the parameter or buffer ``name`` belongs to a normalisation layer, in whichever part."""
        return isinstance(self.get_submodule(name.rpartition(".")[0]), NORMS)


def check_network(net: object, samples: Tensor, n_classes: int) -> None:
    """Tries a network on a few samples.

    Raises:
        ConfigError: If it is not a ``SplitModel``, or does not make of them what it should.
    """
    if not isinstance(net, SplitModel):
        raise ConfigError(f"a network must be a fedexp.models.split.SplitModel, not {type(net).__name__}.")
    net.eval()
    with torch.no_grad():
        h = net.features(samples)
        z = net.classifier(h)
    net.train()
    for what, made, width in (("features", h, net.feature_dim), ("classifier", z, n_classes)):
        if tuple(made.shape) != (len(samples), width):
            raise ConfigError(f"{what} makes {list(made.shape[1:])} numbers of a sample, and should make [{width}].")
    net.signed = bool((h < 0).any())


def flat_size(body: nn.Module, shape: tuple[int, ...], *, name: str) -> int:
    """Returns how many numbers ``body`` makes of one sample of the given shape.

    Args:
        body: The layers in front of the seam.
        shape: Channels, then height and width of an image or length of a sequence.
        name: The network's name, for the message when the sample is too small for it.
    """
    try:
        return _dry_run(body, shape)
    except RuntimeError as error:
        raise _misfit(body, shape, name) from error


def image_channels(shape: tuple[int, ...], *, name: str) -> int:
    """Returns the number of channels of an image shape, or refuses what is not an image."""
    if len(shape) != 3:
        raise ConfigError(f"{name} reads images (channels, height, width), but a sample has the shape {shape}.")
    return shape[0]


def same_length(**lists: Sequence[int]) -> None:
    """Refuses settings that must have one entry per stage of the network and do not agree on the stages."""
    if len({len(values) for values in lists.values()}) > 1:
        given = " and ".join(f"model.{key}={list(values)}" for key, values in lists.items())
        raise ConfigError(f"{given} differ in length: each has one number per stage of the network.")


def _dry_run(body: nn.Module, shape: tuple[int, ...]) -> int:
    """On zeros. A large body gets none, though torch then loads its compiler, which takes longer than a small pass."""
    like = body.state_dict()
    place = torch.device("cpu" if sum(v.nbytes for v in like.values()) <= SMALL_BODY_BYTES else "meta")
    with place, torch.random.fork_rng(devices=[]), torch.no_grad():  # dropout draws random numbers
        weights = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in like.items()}
        out = functional_call(body, weights, torch.zeros(2, *shape))
    return math.prod(out.shape[1:])


def _misfit(body: nn.Module, shape: tuple[int, ...], name: str) -> ConfigError:
    size = "×".join(map(str, shape))
    if len(shape) != 3:
        return ConfigError(
            f"model={name} shrinks sequences of {size} to nothing before its classifier. "
            "Use longer ones, or a network without pooling (model=mlpnet)."
        )
    side = next((side for side in SIDES if _fits(body, (shape[0], side, side))), SIDES[-1])
    return ConfigError(
        f"model={name} shrinks images of {size} to nothing before its classifier. "
        f"Enlarge the images (data.size={side}) or use a network without pooling (model=mlpnet)."
    )


def _fits(body: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        return _dry_run(body, shape) > 0
    except RuntimeError:
        return False
