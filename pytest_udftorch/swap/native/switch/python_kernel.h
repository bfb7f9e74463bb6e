//===- python_kernel.h - Kernels of a board that are written in Python ----===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A kernel in Python is called as torch calls those of torch.library: arguments
// that have their default value are left out at the end and among the keywords.
//
// It is the inside of one operator, so transforms must not see it. No graph is
// traced there (see targetOf); functorch's levels and dispatch modes that are
// live on this thread are excluded while it runs.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_PYTHON_KERNEL_H
#define UDFTORCH_PYTHON_KERNEL_H

#include <Python.h>

#include "board.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

// Of libtorch_python, whose headers of these take long to compile.
#define OF_TORCH __attribute__((visibility("default")))
struct THPDtype;
struct THPLayout;
OF_TORCH PyObject *THPVariable_Wrap(const at::TensorBase &);
namespace torch {
OF_TORCH THPDtype *getTHPDtype(at::ScalarType);
OF_TORCH THPLayout *getTHPLayout(at::Layout);
namespace utils {
OF_TORCH PyObject *getTHPMemoryFormat(at::MemoryFormat);
}
namespace jit {
OF_TORCH pybind11::object toPyObject(c10::IValue);
OF_TORCH c10::IValue toIValue(pybind11::handle, const c10::TypePtr &,
                              std::optional<int32_t>);
} // namespace jit
} // namespace torch

namespace {

/// While one lives, modes for functions see nothing, and below autograd nor do
/// functorch and modes for operators.
class Unseen {
public:
  explicit Unseen(bool Below) : Before(Functions::get_disabled_state()) {
    using c10::DispatchKey;
    Functions::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    if (!Below)
      return;
    c10::DispatchKeySet Live{DispatchKey::FuncTorchDynamicLayerFrontMode,
                             DispatchKey::FuncTorchDynamicLayerBackMode};
    // A mode that the kernel itself enters must work.
    if (c10::impl::TorchDispatchModeTLS::any_modes_set())
      Live = Live | c10::DispatchKeySet{DispatchKey::Python,
                                        DispatchKey::PythonTLSSnapshot};
    if (!(c10::impl::tls_local_dispatch_key_set().included_ & Live).empty())
      Excluded.emplace(Live);
  }
  ~Unseen() { Functions::set_disabled_state(Before); }
  Unseen(const Unseen &) = delete;
  Unseen &operator=(const Unseen &) = delete;

private:
  using Functions = at::impl::PythonTorchFunctionTLS;
  at::impl::TorchFunctionDisabledState Before;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> Excluded;
};

/// What an argument is in Python, beyond what its value tells.
enum class Kind : uint8_t { Plain, Dtype, Layout, MemoryFormat };

Kind kindOf(const c10::Argument &A) {
  auto Type = A.real_type();
  if (auto Optional = Type->cast<c10::OptionalType>())
    Type = Optional->getElementType();
  switch (Type->kind()) {
  case c10::TypeKind::ScalarTypeType:
    return Kind::Dtype;
  case c10::TypeKind::LayoutType:
    return Kind::Layout;
  case c10::TypeKind::MemoryFormatType:
    return Kind::MemoryFormat;
  default:
    return Kind::Plain;
  }
}

/// A new reference; null with an error of Python's.
PyObject *inPython(const c10::IValue &V, Kind What) {
  if (V.isNone())
    Py_RETURN_NONE;
  if (V.isTensor()) {
    const Tensor &X = V.toTensor();
    if (!X.defined())
      Py_RETURN_NONE;
    // A number in place of a tensor goes back to a number below.
    if (!X.unsafeGetTensorImpl()->is_wrapped_number())
      return THPVariable_Wrap(X);
  }
  if (V.isInt()) {
    switch (What) {
    case Kind::Dtype:
      return Py_NewRef(reinterpret_cast<PyObject *>(
          torch::getTHPDtype(static_cast<at::ScalarType>(V.toInt()))));
    case Kind::Layout:
      return Py_NewRef(reinterpret_cast<PyObject *>(
          torch::getTHPLayout(static_cast<at::Layout>(V.toInt()))));
    case Kind::MemoryFormat:
      return Py_NewRef(torch::utils::getTHPMemoryFormat(
          static_cast<at::MemoryFormat>(V.toInt())));
    case Kind::Plain:
      return PyLong_FromLongLong(V.toInt());
    }
  }
  if (V.isDouble())
    return PyFloat_FromDouble(V.toDouble());
  if (V.isBool())
    return PyBool_FromLong(V.toBool());
  if (V.isList()) {
    const auto List = V.toListRef();
    PyObject *Made = PyList_New(static_cast<Py_ssize_t>(List.size()));
    for (size_t I = 0; Made && I < List.size(); ++I) {
      PyObject *Item = inPython(List[I], What);
      if (!Item)
        Py_CLEAR(Made);
      else
        PyList_SET_ITEM(Made, static_cast<Py_ssize_t>(I), Item);
    }
    return Made;
  }
  return torch::jit::toPyObject(V).release().ptr();
}

/// Whether a value is a default; only kinds of values that defaults have.
bool isDefault(const c10::IValue &V, const std::optional<c10::IValue> &D) {
  if (!D)
    return false;
  if (V.isNone() || D->isNone())
    return V.isNone() && D->isNone();
  if (V.isInt() && D->isInt())
    return V.toInt() == D->toInt();
  if (V.isDouble() && D->isDouble())
    return V.toDouble() == D->toDouble();
  if (V.isBool() && D->isBool())
    return V.toBool() == D->toBool();
  if (V.isString() && D->isString())
    return V.toStringView() == D->toStringView();
  if (V.isIntList() && D->isIntList())
    return V.toIntVector() == D->toIntVector();
  return false;
}

/// The kernel of a target that calls a function in Python.
struct PythonKernel final : c10::OperatorKernel {
  PythonKernel(const Board &B, PyObject *Function)
      : Function(Py_NewRef(Function)),
        BelowAutograd(c10::toFunctionalityKey(B.Key) !=
                      c10::DispatchKey::AutogradFunctionality) {
    const auto &Schema = B.Op.schema();
    for (const auto &A : Schema.arguments()) {
      Kinds.push_back(kindOf(A));
      Defaults.push_back(A.default_value());
      Positional += !A.kwarg_only();
      Names.push_back(PyUnicode_InternFromString(A.name().c_str()));
    }
    for (const auto &R : Schema.returns())
      Types.push_back(R.real_type());
  }
  ~PythonKernel() override {
    if (!Py_IsInitialized())
      return;
    pybind11::gil_scoped_acquire Held;
    for (PyObject *Name : Names)
      Py_DECREF(Name);
    Py_DECREF(Function);
  }

  void operator()(const OperatorHandle &, c10::DispatchKeySet,
                  c10::Stack *Stack) {
    pybind11::gil_scoped_acquire Held;
    Unseen Here(BelowAutograd);
    auto Arguments = torch::jit::pop(*Stack, Kinds.size());
    pybind11::object Result = call(Arguments);
    Arguments.clear();
    push(Result, *Stack);
  }

private:
  pybind11::object call(const std::vector<c10::IValue> &Given) const {
    size_t Count = Positional;
    while (Count && isDefault(Given[Count - 1], Defaults[Count - 1]))
      --Count;
    std::vector<pybind11::object> Kept;
    std::vector<PyObject *> Passed(1, nullptr); // the callee may write there
    pybind11::object Keywords;
    std::vector<PyObject *> Named;
    const auto Take = [&](size_t I) {
      PyObject *Made = inPython(Given[I], Kinds[I]);
      if (!Made)
        throw failed();
      Kept.push_back(pybind11::reinterpret_steal<pybind11::object>(Made));
      Passed.push_back(Made);
    };
    for (size_t I = 0; I < Count; ++I)
      Take(I);
    for (size_t I = Positional; I < Given.size(); ++I)
      if (!isDefault(Given[I], Defaults[I])) {
        Take(I);
        Named.push_back(Names[I]);
      }
    if (!Named.empty()) {
      Keywords = pybind11::reinterpret_steal<pybind11::object>(
          PyTuple_New(static_cast<Py_ssize_t>(Named.size())));
      for (size_t I = 0; I < Named.size(); ++I)
        PyTuple_SET_ITEM(Keywords.ptr(), static_cast<Py_ssize_t>(I),
                         Py_NewRef(Named[I]));
    }
    PyObject *Result = PyObject_Vectorcall(
        Function, Passed.data() + 1, Count | PY_VECTORCALL_ARGUMENTS_OFFSET,
        Keywords.ptr());
    if (!Result)
      throw failed();
    return pybind11::reinterpret_steal<pybind11::object>(Result);
  }

  void push(const pybind11::object &Result, c10::Stack &Stack) const {
    if (Types.empty())
      return;
    if (Types.size() == 1) {
      Stack.push_back(torch::jit::toIValue(Result, Types[0], std::nullopt));
      return;
    }
    TORCH_CHECK(PyTuple_Check(Result.ptr()) || PyList_Check(Result.ptr()),
                "a kernel in Python must return a tuple of ", Types.size(),
                " results");
    const auto Items = pybind11::reinterpret_steal<pybind11::object>(
        PySequence_Fast(Result.ptr(), ""));
    TORCH_CHECK(PySequence_Fast_GET_SIZE(Items.ptr()) ==
                    static_cast<Py_ssize_t>(Types.size()),
                "a kernel in Python returned ",
                PySequence_Fast_GET_SIZE(Items.ptr()), " results instead of ",
                Types.size());
    for (size_t I = 0; I < Types.size(); ++I)
      Stack.push_back(torch::jit::toIValue(
          PySequence_Fast_GET_ITEM(Items.ptr(), static_cast<Py_ssize_t>(I)),
          Types[I], std::nullopt));
  }

  /// What carries Python's error through C++.
  static python_error failed() {
    python_error Error;
    Error.persist();
    return Error;
  }

  PyObject *Function;
  bool BelowAutograd;
  size_t Positional = 0;
  std::vector<Kind> Kinds;
  std::vector<std::optional<c10::IValue>> Defaults;
  std::vector<PyObject *> Names;
  std::vector<c10::TypePtr> Types;
};

} // namespace

#endif
