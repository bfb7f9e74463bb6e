# SPDX-License-Identifier: Apache-2.0
"""What torch computes, as digests of bits: in a test's process, or in one on a patched libtorch.

Run as a program, it prints JSON. It imports this project's package only for ``nested``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch

#: Functions of one and of two arguments that corem has, and some that no library can swap.
SWAPPED = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
           "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
           "sigmoid")  # fmt: skip
PAIRS = ("pow", "atan2", "hypot")
STOCK = ("sqrt", "rsqrt", "round")


def digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def functions(dtypes=(torch.float32, torch.float64)) -> dict[str, str]:
    """Digests of every function, on contiguous and on strided tensors."""
    # Two threads whose first call of MKL's vector functions is the same call have been seen to get
    # roots of twelve bits in one of them (an Intel Xeon under load, 2 of 19 processes).
    torch.sqrt(torch.ones(1))
    found = {}
    for dtype in dtypes:
        # Exact, unlike linspace, whose kernels round by the capability.
        steps = torch.arange(-20011, 20011).to(dtype)
        x = torch.cat((steps / 4096, steps / 64))
        for name in (*SWAPPED, *PAIRS, *STOCK):
            call = getattr(torch, name)
            for layout, y in (("", x), (" strided", torch.stack((x, x), -1)[:, 0])):
                arguments = (y, y.flip(0)) if name in PAIRS else (y,)
                found[f"{name} {dtype}{layout}"] = digest(call(*arguments))
    return found


def training() -> str:
    """The weights of a small model after three steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.SiLU(), torch.nn.Linear(32, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Uniform: in a session normal variates are the library's, and a patch cannot reach them.
    x, y = 4 * torch.rand(64, 16) - 2, torch.arange(64) % 5
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return digest(torch.cat([p.flatten() for p in model.parameters()]))


class Exps(torch.utils.data.Dataset):
    """Its samples are computed where they are taken: in a worker."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.linspace(-9, index, 4001).exp()


def worker(processes: int) -> str:
    loader = torch.utils.data.DataLoader(Exps(), batch_size=2, num_workers=processes)
    return digest(next(iter(loader)))


def forked() -> str:
    """What a forked child computes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # the threads of the parent's OpenMP are not there
        os.write(write, digest(torch.linspace(-9, 1, 4001).exp()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 100).decode()


def inlined() -> str:
    """An operator that no symbol reaches."""
    return digest(torch.nn.functional.gelu(torch.linspace(-9, 9, 4001)))


def one_function() -> str:
    return digest(torch.linspace(-9, 1, 4001).exp())


def nested() -> dict[str, object]:
    """Sessions on top of a patch: the patched functions are what is stock to them."""
    import pytest_udftorch

    before = one_function()
    found: dict[str, object] = {"before": before}
    for library, profile in (("std", False), ("std", True), ("corem", False), ("canary", False)):
        with pytest_udftorch.patched(library, ("exp",), profile=profile) as session:
            found[f"{library} {profile}"] = one_function()
            reached = session.profile if profile else session.reached
        found[f"after {library} {profile}"] = one_function()
        assert profile or library == "std" or reached["exp"]
    with pytest_udftorch.trace(("exp",)) as calls:
        found["trace"] = one_function()
    found["calls"] = calls
    return found


def main() -> None:
    told = {
        "torch": torch.__file__,
        "ours": [name for name in sys.modules if name.startswith("pytest_udftorch")],
        "forked": forked(),  # before anything starts threads
        "worker": worker(1),
        "training": training(),
        "functions": functions(),
        "inlined": inlined(),
    }
    print(json.dumps({**told, "nested": nested()}))


if __name__ == "__main__":
    main()
