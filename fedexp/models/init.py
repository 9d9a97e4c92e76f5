"""Initialisation where torch's default is not what the papers' code does and the difference is felt."""

from __future__ import annotations

from torch import nn


def kaiming_convs(body: nn.Module) -> None:
    """Draws convolutions from Kaiming normal (fan out, ReLU) with zero bias, as the public FedRepo code does.

    Torch's default lets the signal shrink from layer to layer; plain SGD at the papers' rates then starts slowly.

    Deviations: FedRepo also draws linear layers in front of the classifier from N(0, 0.01). Its LeNet and TFCNN have
        none there; our LeNet does, and its features would start near zero. Linear layers keep torch's default, which
        FedRepo's classifier has too.
    """
    for layer in body.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d) and not layer.weight.is_meta:  # there torch would load its compiler
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
