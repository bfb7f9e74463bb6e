# SPDX-License-Identifier: Apache-2.0
"""JAX as an opponent of fusion plans: the bench's cases in its own operators, compiled by XLA."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor


def missing() -> str:
    """Return what is missing to run JAX, or ""."""
    return "" if importlib.util.find_spec("jax") else "the package jax is missing"


def version() -> str:
    """Return the version of the package."""
    return f"JAX {importlib.metadata.version('jax')}"


def _l2svm(out: Any, d: Any, y: Any, step: Any) -> Any:
    kept = 1 - y * (out + step * d)
    inside = kept > 0
    return (kept * inside * y * d).sum(), (d * d * inside).sum()


def _logistic(x: Any, b: Any, y: Any) -> Any:
    import jax

    p = jax.nn.softmax(x @ b, 1)
    return x.T @ (p - y), -(y * jax.numpy.log(p + 1e-9)).sum()


def _poisson(x: Any, w: Any, h: Any) -> Any:
    import jax

    product = w @ h
    return (product - x * jax.numpy.log(product + 1e-9)).sum()


def _kmeans(x: Any, c: Any) -> Any:
    d = (c * c).sum(1) - 2 * (x @ c.T)
    least = d.min(1, keepdims=True)
    near = (d <= least) * 1.0
    return near / near.sum(1, keepdims=True), least.sum()


def _autoencoder(x: Any, u: Any, v: Any) -> Any:
    import jax

    seen = jax.nn.sigmoid(jax.nn.sigmoid(x @ u) @ v)
    far = seen - x
    return (far * far).sum(), far * seen * (1 - seen)


def _sparse(x: Any, u: Any, v: Any) -> Any:
    import jax

    return (x * jax.numpy.log(u @ v.T + 1e-9)).sum()


def _glm(x: Any, v: Any, w: Any) -> Any:
    return x.T @ (w * (x @ v))


def _als(x: Any, u: Any, v: Any) -> Any:
    e = (x != 0) * (u @ v.T - x)
    return (e * e).sum(), e @ v, e.T @ u


def _part(x: Any, u: Any, v: Any, y: Any) -> Any:
    return y + x * (u @ v.T)


#: Case -> a function of JAX's arrays.
CASES: Final[dict[str, Callable[..., Any]]] = {
    "l2svm": _l2svm,
    "multinomial logistic": _logistic,
    "Poisson factorisation": _poisson,
    "k-means": _kmeans,
    "autoencoder": _autoencoder,
    "sparse loss": _sparse,
    "generalised linear model": _glm,
    "ALS": _als,
    "sum with a sparse part": _part,
}


def call_of(name: str, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    """Return a call that computes a case on JAX's CPU device; its results are tensors.

    A sparse input is given in its dense form. Results share their memory with JAX's.
    """
    import jax

    device = jax.devices("cpu")[0]
    dense = (t.to_dense() if t.layout is torch.sparse_csr else t for t in inputs)
    given = [jax.device_put(t.numpy(), device) for t in dense]
    with jax.default_matmul_precision("highest"):
        compiled = jax.jit(CASES[name]).lower(*given).compile()

    def run() -> Any:
        found = jax.block_until_ready(compiled(*given))
        return jax.tree_util.tree_map(torch.utils.dlpack.from_dlpack, found)

    return run
