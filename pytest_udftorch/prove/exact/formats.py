# SPDX-License-Identifier: Apache-2.0
"""Binary floating-point formats, and arrays of their encodings.

Arrays may be torch tensors (any device) or NumPy arrays; torch is never imported here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import CheckError

Encodings: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Format:
    """A binary interchange format.

    Attributes:
        name: torch's name of the dtype.
        bits: width of an encoding.
        precision: bits of a significand, the hidden one included.
        max_exponent: every finite value is below 2**max_exponent.
    """

    name: str
    bits: int
    precision: int
    max_exponent: int

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest subnormal, which is 2**min_exponent."""
        return 3 - self.max_exponent - self.precision

    @property
    def sign_bit(self) -> int:
        """Encoding of -0."""
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        """Encoding of +infinity."""
        return (2 * self.max_exponent - 1) << (self.precision - 1)

    @property
    def nan(self) -> int:
        """Encoding of the canonical quiet NaN (0x7fc00000 for float32)."""
        return self.infinity | 1 << (self.precision - 2)

    @property
    def min_normal(self) -> int:
        """Encoding of the smallest positive normal value."""
        return 1 << (self.precision - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's unsigned integer type of an encoding."""
        return np.dtype(f"u{self.bits // 8}")


FORMATS: Final[dict[str, Format]] = {
    f.name: f
    for f in (
        Format("float32", 32, 24, 128),
        Format("float64", 64, 53, 1024),
        Format("float16", 16, 11, 16),
        Format("bfloat16", 16, 8, 128),
    )
}


# Encodings ---------------------------------------------------------------------------


def encodings(values: object) -> tuple[Encodings, Format]:
    """Return the encodings of a float array or tensor, in its own shape, and the format.

    Args:
        values: torch tensor, NumPy array or scalar, float or list of floats; float32,
            float64, float16 or bfloat16 (a tensor, or NumPy with ml_dtypes).

    Raises:
        CheckError: any other dtype.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        name = str(values.dtype).removeprefix("torch.")
        if name not in FORMATS:
            raise _unsupported(name)
        fmt = FORMATS[name]
        signed = {16: torch.int16, 32: torch.int32, 64: torch.int64}[fmt.bits]
        # .resolve_neg(): a lazily negated view has the sign of its storage.
        plain = values.detach().resolve_neg().cpu().contiguous()
        return plain.view(signed).numpy().view(fmt.dtype), fmt
    array = np.asarray(values, order="C")
    if array.dtype.name not in FORMATS:
        raise _unsupported(array.dtype.name)
    fmt = FORMATS[array.dtype.name]
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.view(fmt.dtype), fmt


def _unsupported(name: str) -> CheckError:
    return CheckError(
        f"dtype {name} is not a floating-point format that has ULPs here. Convert the values to "
        f"one of {', '.join(FORMATS)}."
    )


def decode(encoded: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.float64]:
    """Return the values of encodings as float64 (exact for every format here)."""
    bits = np.asarray(encoded).astype(fmt.dtype, copy=False)
    with np.errstate(invalid="ignore"):
        if fmt.name == "bfloat16":
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return bits.view(fmt.name).astype(np.float64)


def encode(values: npt.ArrayLike, fmt: Format) -> Encodings:
    """Return the encodings of float64 values that the format holds exactly.

    NaNs become canonical.

    Raises:
        CheckError: a value that the format cannot hold; nothing is ever rounded here.
    """
    exact = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if fmt.name == "bfloat16":
            wide = exact.astype(np.float32).view(np.uint32)
            out: Encodings = (wide >> 16).astype(np.uint16)
        else:
            out = exact.astype(fmt.name).view(fmt.dtype)
    nan = np.isnan(exact)
    if not np.array_equal(decode(out, fmt)[~nan], exact[~nan]):
        raise CheckError(f"A value to encode is not a {fmt.name} number. Round it first.")
    return np.where(nan, fmt.dtype.type(fmt.nan), out)


def is_nan(encoded: Encodings, fmt: Format) -> npt.NDArray[np.bool_]:
    """Tell which encodings are NaNs."""
    magnitude = encoded & fmt.dtype.type(fmt.sign_bit - 1)
    return np.asarray(magnitude > fmt.dtype.type(fmt.infinity), dtype=np.bool_)


def canonical(encoded: Encodings, fmt: Format) -> Encodings:
    """Return the encodings with every NaN replaced by the canonical one."""
    return np.where(is_nan(encoded, fmt), fmt.dtype.type(fmt.nan), encoded)


def hex_float(value: float) -> str:
    """Return a number as C's ``%a`` prints it."""
    text = float(value).hex()
    if "p" not in text:
        return text
    mantissa, _, exponent = text.partition("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def describe(encoding: int, fmt: Format) -> str:
    """Return an encoding in hex, as ``%a``, and in decimal digits that identify it."""
    value = float(decode(np.array([encoding]), fmt)[0])
    digits = {11: 5, 8: 4, 24: 9, 53: 17}[fmt.precision]
    return f"0x{encoding:0{fmt.bits // 4}x}  {hex_float(value)}  {value:.{digits}g}"
