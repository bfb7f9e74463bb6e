# SPDX-License-Identifier: Apache-2.0
"""LeNet with ELU, as in the study whose tables the demo prints."""

from __future__ import annotations

import torch
from torch import nn


class LeNet(nn.Module):
    """Two convolutions and two linear layers; ELU between them, LogSoftmax at the end.

    One forward pass runs ELU three times and LogSoftmax once: four operators that
    exponentiate, one that takes a logarithm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 10, 5),
            nn.MaxPool2d(2),
            nn.ELU(),
            nn.Conv2d(10, 20, 5),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.ELU(),
            nn.Linear(320, 50),
            nn.ELU(),
            nn.Linear(50, 10),
            nn.LogSoftmax(dim=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (batch, 10) of images (batch, 1, 28, 28), float32."""
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits
