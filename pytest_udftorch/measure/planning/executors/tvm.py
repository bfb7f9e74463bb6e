# SPDX-License-Identifier: Apache-2.0
"""Apache TVM: the exported program as Relax, with its default pipeline and no tuning; CPU."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run, importing, quiet
from pytest_udftorch.measure.planning.export import export

#: Mode of TVM's pool of threads: one thread for each of the fastest cores.
_FASTEST_CORES: Final = 1


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with importing("apache-tvm"), quiet():
        import tvm
        from tvm import relax
        from tvm.relax.frontend.torch import from_exported_program
    exported = export(model, inputs)
    threads = torch.get_num_threads()
    with quiet():
        module = from_exported_program(exported.program, keep_params_as_input=False)
        processor = tvm.get_global_func("target.llvm_get_system_cpu")()
        target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": threads})
        machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    tvm.get_global_func("runtime.config_threadpool")(_FASTEST_CORES, threads)
    main = machine["main"]

    def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.utils.dlpack.from_dlpack(t) for t in main(*map(tvm.runtime.from_dlpack, tensors))
        ]

    return exported.callable(flat)


EXECUTORS: Final = (
    Executor("tvm", _make, frozenset({"cpu"}), frozenset({torch.float32, torch.float64})),
)
