# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 in its 32×32 form with ELU in the place of ReLU."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm around a shortcut (He et al., CVPR 2016, fig. 2)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.elu1 = nn.ELU()
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )
        self.elu2 = nn.ELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, outer, h / stride, w / stride) of (batch, inner, h, w)."""
        inner = self.elu1(self.bn1(self.conv1(x)))
        found: torch.Tensor = self.elu2(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return found


class ResNet18(nn.Module):
    """A 3×3 stem without pooling, four stages of two blocks, mean, linear, LogSoftmax.

    Args:
        width: channels of the first stage; 64 is ResNet-18, a smaller one is a narrow form.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        channels = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ELU()
        )
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(inner, outer, stride), Block(outer, outer, 1))
                for inner, outer, stride in zip(channels, channels[1:], (1, 2, 2, 2), strict=False)
            )
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10), nn.LogSoftmax(dim=1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (batch, 10) of images (batch, 3, 32, 32), float32."""
        found: torch.Tensor = self.head(self.stages(self.stem(images)))
        return found
