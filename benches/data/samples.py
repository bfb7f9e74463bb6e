# SPDX-License-Identifier: Apache-2.0
"""Samples on which a model is trained and tested."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Samples:
    """Inputs and targets; the first dimension counts the samples.

    Attributes:
        source: a description; every table of results shows it.
    """

    source: str
    train_inputs: torch.Tensor
    train_targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor

    def __str__(self) -> str:
        return (
            f"{self.source}: {len(self.train_targets):,} for training, "
            f"{len(self.test_targets):,} for testing"
        )

    def thinned(self, step: int) -> Samples:
        """Return every ``step``-th sample."""
        every = slice(None, None, step)
        return replace(
            self,
            train_inputs=self.train_inputs[every],
            train_targets=self.train_targets[every],
            test_inputs=self.test_inputs[every],
            test_targets=self.test_targets[every],
        )
