"""Numbers of the papers that are counted, not trained for: clients and samples, settings, parameters, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from fedexp.api import versions
from fedexp.build import build
from fedexp.client.network import layout_of, tensors
from fedexp.config.compose import Config, composed
from fedexp.config.make import make
from fedexp.core.algorithm import Algorithm
from fedexp.core.state import Tree, snapshot
from fedexp.core.views import Facts
from fedexp.errors import ConfigError, DataError
from fedexp.models.split import NORMS, SplitModel
from fedexp.parts import parts
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.published import scene
from fedexp.reproduce.results import Result

GREY28, COLOUR32 = (1, 28, 28), (3, 32, 32)

# A setting of FedRS's tables 2 and 3, and a scene with it.
FEDRS_SCENES = {
    "mnist-2": "mnist-2/lenet2d",
    "cifar10-100-5": "cifar10-100-5/tfcnn",
    "cifar10-100-2": "cifar10-100-2/tfcnn",
    "cifar100-100-20": "cifar100-100-20/tfcnn",
    "shakespeare": "shakespeare/charlstm",
    "femnist": "femnist/fecnn",
    "sa": "sa/sacnn",
}

# A metric of FedRS's table 3, and the setting of ours that it is.
SETTINGS = {
    "rounds": "rounds",
    "epochs": "local.epochs",
    "fraction": "cohort.fraction",
    "lr": "optim.lr",
    "momentum": "optim.momentum",
    "batch": "local.batch_size",
}


@dataclass(frozen=True)
class _Sized:
    """A scene, with the shape of a sample and the number of classes, so that its network can be made without data."""

    scene: str
    shape: tuple[int, ...]
    classes: int


# A setting of FedRS's table 4, and a scene with that network.
FEDRS_NETWORKS = {
    "lenet2d": _Sized("mnist-2/lenet2d", GREY28, 10),
    "tfcnn": _Sized("cifar10-100-5/tfcnn", COLOUR32, 10),
    "vgg11": _Sized("cifar10-100-5/vgg11", COLOUR32, 10),
    "charlstm": _Sized("shakespeare/charlstm", (80,), 81),
    "fecnn": _Sized("femnist/fecnn", GREY28, 62),
    "sacnn": _Sized("sa/sacnn", (1, 784), 32),
}

# A setting of FedMR's table 3, and a scene with those data and that network.
FEDMR_NETWORKS = {
    "fmnist": _Sized("fmnist/resnet18/P10C2", GREY28, 10),
    "svhn": _Sized("svhn/resnet18/P10C2", COLOUR32, 10),
    "cifar10": _Sized("cifar10/resnet18/P10C2", COLOUR32, 10),
    "cifar100": _Sized("cifar100/wrn28_10/P10C10", COLOUR32, 100),
    "isic2019": _Sized("isic2019/efficientnet_b0/real", (3, 200, 200), 8),
}


def counted(entry: Entry, data: Sequence[str] = ()) -> list[Result]:
    """Counts what an entry prints, cell by cell. A setting whose data are missing has failed cells that say so.

    Args:
        entry: The table.
        data: Overrides that say where data sets are.

    Raises:
        ConfigError: If nothing here can count it.
    """
    if entry.id not in COUNTERS:
        raise ConfigError(f"{entry.id} is not counted: {' '.join(entry.notes) or entry.title}")
    return list(COUNTERS[entry.id](entry, data))


def _federations(entry: Entry, data: Sequence[str]) -> Iterator[Result]:
    """FedRS, table 2: who owns what, as the scenes are dealt out."""
    for setting, name in FEDRS_SCENES.items():
        result = _Results(entry, setting, name)
        try:
            yield from result.done("", _federation(composed([*result.overrides, *data])), "plan=true")
        except DataError as error:
            yield from result.failed("", str(error).partition("\n")[0])


def _federation(config: Config) -> dict[str, float]:
    experiment = build(config)
    return {
        "clients": len(experiment.splits),
        "classes": experiment.data.spec.n_classes,
        "classes_per_client": float((experiment.data.counts > 0).sum(1).float().mean()),
        "samples_per_client": mean(len(split.train) for split in experiment.splits),
        "test_samples": len(experiment.data.test),
    }


def _settings(entry: Entry, _: Sequence[str]) -> Iterator[Result]:
    """FedRS, table 3: the settings of our experiments."""
    for setting, name in FEDRS_SCENES.items():
        result = _Results(entry, setting, name)
        config = composed(result.overrides)
        yield from result.done("", {metric: _value(config, path) for metric, path in SETTINGS.items()}, "--cfg job")


def _value(config: Mapping[str, Any], path: str) -> float:
    node: Any = config
    for key in path.split("."):
        node = node[key]
    return float(node)


def _networks(entry: Entry, _: Sequence[str]) -> Iterator[Result]:
    """FedRS, table 4: parameters of the feature extractor, features, layers with parameters."""
    for setting, sized in FEDRS_NETWORKS.items():
        result = _Results(entry, setting, sized.scene)
        net = _network(composed(result.overrides), sized)
        layers = (m for m in net.modules() if list(m.parameters(recurse=False)) and not isinstance(m, NORMS))
        found = {
            "parameters": _numbers(dict(net.features.named_parameters())),
            "feature_dim": net.feature_dim,
            "layers": sum(m.num_layers if isinstance(m, nn.RNNBase) else 1 for m in layers),
        }
        yield from result.done("", found, "plan=true")


def _messages(entry: Entry, _: Sequence[str]) -> Iterator[Result]:
    """FedMR, table 3: what the server sends a client, by a method without and one with prototypes."""
    for setting, sized in FEDMR_NETWORKS.items():
        result = _Results(entry, setting, sized.scene)
        plain, more = (_sent(composed([*result.overrides, f"algo={name}"]), sized) for name in ("fedavg", "fedmr"))
        yield from result.done("without prototypes", {"parameters_million": plain / 1e6}, "plan=true algo=fedavg")
        yield from result.done("with prototypes", {"parameters_million": more / 1e6}, "plan=true algo=fedmr")
        extra = 100 * (more - plain) / plain
        yield from result.done("prototypes only", {"extra_percent": extra}, "plan=true algo=fedmr")


COUNTERS: dict[str, Callable[[Entry, Sequence[str]], Iterator[Result]]] = {
    "fedrs/table2": _federations,
    "fedrs/table3": _settings,
    "fedrs/table4": _networks,
    "fedmr/table3": _messages,
}


def _network(config: Config, sized: _Sized) -> SplitModel:
    """A scene's network, without memory for its weights."""
    with torch.device("meta"):
        net: SplitModel = make({**config["model"], "_partial_": True})(sized.shape, sized.classes)
    return net


def _sent(config: Config, sized: _Sized) -> int:
    """How many numbers go from the server to one client in one round."""
    net = _network(config, sized)
    _, components, _ = parts(config)
    clients = config["cohort"]["clients"]
    facts = Facts(
        seed=config["seed"], rounds=config["rounds"], fraction=config["cohort"]["fraction"], n_clients=clients,
        n_classes=sized.classes, feature_dim=net.feature_dim, layout=layout_of(net),
        counts=torch.ones(clients, sized.classes), initial=snapshot(tensors(net)), public=0,
    )  # fmt: skip
    algorithm = Algorithm.compile(components, facts)
    return sum(_numbers(message) for message in algorithm.downlink(algorithm.fresh_state(), 0).values())


def _numbers(tree: Tree | Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tree.values())


class _Results:
    """Results of one setting of an entry."""

    def __init__(self, entry: Entry, setting: str, name: str) -> None:
        self.entry, self.setting = entry, setting
        self.scene = scene(entry.paper, name)
        self.overrides = [f"experiment={self.scene.experiment}"]

    def done(self, method: str, found: Mapping[str, float], how: str) -> Iterator[Result]:
        """What was counted, by metric; ``how`` are further arguments of a command that shows it."""
        return (self._result(method, metric, value, how=how) for metric, value in found.items())

    def failed(self, method: str, error: str) -> Iterator[Result]:
        """Every metric of the entry, without a value."""
        return (self._result(method, measure.metric, None, error=error) for measure in self.entry.measures)

    def _result(self, method: str, metric: str, value: float | None, how: str = "plan=true", error: str = "") -> Result:
        return Result(
            self.entry.id, self.setting, method, metric, seed=0, tuning="", value=value,
            status="failed" if error else "done", reduced="stand-in" if self.scene.stand_in else "", rounds=0,
            rule="count", run="", command=f"python -m fedexp {' '.join(self.overrides)} {how}", seconds=None,
            partition="", versions=", ".join(f"{name} {v}" for name, v in versions().items()), error=error,
        )  # fmt: skip
