# SPDX-License-Identifier: Apache-2.0
"""Which tensors a watcher may look at, and through which plain tensors it sees the others.

A tensor is plain if it is strided and its numbers lie in memory. Whatever looks at the numbers of a
tensor that it was handed asks here first: of some others every operator fails, of a few it ends the
process (torch's efficient zeros, and parameters whose memory FSDP has freed, have a null pointer).
"""

from __future__ import annotations

from typing import Any

from pytest_udftorch.base import compat


def is_plain(value: Any) -> bool:
    """Tell whether something is a strided tensor whose numbers lie in memory, of any dtype."""
    import torch

    return isinstance(value, torch.Tensor) and not _odd(value)


def is_real(value: Any) -> bool:
    """Tell whether something is a plain tensor of real floating-point numbers that has some."""
    return is_plain(value) and value.is_floating_point() and value.numel() > 0


def is_inexact(value: Any) -> bool:
    """Tell whether something is a plain tensor of real or complex numbers that has some."""
    inexact = is_plain(value) and (value.is_floating_point() or value.is_complex())
    return inexact and value.numel() > 0


def kind(tensor: Any) -> str:
    """Return what a tensor is in a word or two, such as ``sparse_csr``; empty if it is plain."""
    with compat.no_torch_function():
        return _odd(tensor)


def _odd(tensor: Any) -> str:
    import torch

    of: Any = type(tensor)
    if of is not torch.Tensor and of is not torch.nn.Parameter and compat.computes_itself(of):
        return str(of.__name__)
    if tensor.layout is not torch.strided:
        return str(tensor.layout).rpartition(".")[2].lstrip("_")
    if tensor.device.type == "meta":
        return "meta"
    if tensor.is_nested:
        return "nested"
    if compat.is_wrapped(tensor):
        return "torch.func"
    if tensor.is_quantized:
        return "quantized"
    if compat.is_zero_tensor(tensor):
        return "zeros"
    return "" if _has_memory(tensor) else "without memory"


def _has_memory(tensor: Any) -> bool:
    try:
        return bool(tensor.numel() == 0 or tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):  # of a backend that keeps it elsewhere
        return False


def contents(tensor: Any) -> tuple[Any, ...] | None:
    """Return the plain tensors that say together what a tensor holds.

    Of a plain tensor it is that tensor; of a sparse one its indices and values; of a nested one its
    parts; of a subclass that says what it is made of (``__tensor_flatten__``) the contents of that;
    of one that ``torch.func`` follows the contents of what it wraps.

    Returns:
        None if nothing can be read: a tensor without data, or a subclass that keeps it to itself.
    """
    with compat.no_torch_function():
        return _contents(tensor)


def _contents(tensor: Any) -> tuple[Any, ...] | None:
    import torch

    match _odd(tensor):
        case "":
            return (tensor,)
        case "meta" | "without memory":
            return None
        case "torch.func":
            return _contents(compat.unwrapped(tensor))
        case "zeros":
            return (torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device),)
        case "nested":
            return _all(tensor.detach().unbind())
        case "quantized":
            return (tensor.dequantize(),)
        case "mkldnn":
            return (tensor.to_dense(),)
        case "sparse_coo":
            return compat.sparse_parts(tensor.detach())
        case "sparse_csr" | "sparse_bsr":
            own = tensor.detach()
            return own.crow_indices(), own.col_indices(), own.values()
        case "sparse_csc" | "sparse_bsc":
            own = tensor.detach()
            return own.ccol_indices(), own.row_indices(), own.values()
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return None if flatten is None else _all(getattr(tensor, name) for name in flatten()[0])


def sizes(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's sizes; -1 where the parts of a nested one differ, or may."""
    with compat.no_torch_function():
        if _odd(tensor) == "nested":
            return (int(tensor.size(0)), *[-1] * (tensor.dim() - 1))
        # Sizes of jagged tensors are symbols.
        return tuple(n if isinstance(n, int) else -1 for n in tensor.shape)


def real_parts(value: Any) -> list[Any]:
    """Return the plain tensors of real numbers that are in a tensor: of complex ones their parts.

    Those without an element are left out, and so are integers, such as the indices of a sparse one.
    """
    import torch

    found = []
    for part in contents(value) or ():
        if part.is_complex():
            part = torch.view_as_real(part.detach().resolve_conj())
        if part.is_floating_point() and part.numel():
            found.append(part)
    return found


def _all(parts: Any) -> tuple[Any, ...] | None:
    found: list[Any] = []
    for part in parts:
        own = _contents(part)
        if own is None:
            return None
        found += own
    return tuple(found)


#: Kinds without numbers: nobody misses what cannot be there.
_EMPTY = frozenset({"meta", "without memory", "FakeTensor", "FunctionalTensor"})


def hides(tensor: Any) -> str:
    """Return the kind of a tensor that has numbers which nobody can look at; else nothing."""
    with compat.no_torch_function():
        what = _odd(tensor)
        return what if what not in _EMPTY and _contents(tensor) is None else ""


def is_wrapper(kind: type) -> bool:
    """Tell whether a class of tensors computes by operators on the tensors it is made of."""
    return compat.computes_itself(kind) and hasattr(kind, "__tensor_flatten__")
