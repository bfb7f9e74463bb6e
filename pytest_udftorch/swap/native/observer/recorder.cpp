//===- recorder.cpp - Record operators without Python ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// pytest_udftorch/swap/observe/recorder.py has a mode of torch's dispatcher
// that notes every operator: names, arguments, and digests of the tensors
// before and after. From Python, each call costs many times what a small
// operator itself costs. This file does the same for that mode, and makes the
// same objects.
//
// The dispatcher hands calls under a mode to PyInterpreter::dispatch, a virtual
// function of a table that libtorch_python owns. While a mode is recorded, the
// interpreter has a copy of that table whose entry `dispatch` leads here. Calls
// under other modes go on to the old entry. So do those that Python has to see:
// calls that draw random numbers, whose values are kept or replaced, or that
// get tensors of subclasses. The mode's __torch_dispatch__ then appends to the
// same list.
//
// Of Python this file uses exported functions only, so what one Python's
// headers make also runs in the others. The interpreter's lock is held except
// while an operator runs; it guards everything here.
//
//===----------------------------------------------------------------------===//

#include <Python.h>

#include "glibc.h"
#include "libstdcxx.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/autograd/function.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

// What headers of newer C libraries ask for, so that this library also loads
// beside older ones. The process counts as having several threads.
char __libc_single_threaded = 0;

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using c10::OperatorHandle;
using c10::ScalarType;
using c10::impl::PyInterpreter;
using c10::impl::PyInterpreterVTable;
using c10::impl::TorchDispatchModeTLS;
using torch::jit::Stack;

//===----------------------------------------------------------------------===//
// Python
//===----------------------------------------------------------------------===//

/// A Python exception is set. It ends the run as an error of torch; the mode
/// raises what was set.
struct PythonFailed {};

/// A reference to an object that is counted.
class Object {
public:
  Object() = default;
  explicit Object(PyObject *Owned) : It(Owned) {}
  Object(Object &&O) noexcept : It(std::exchange(O.It, nullptr)) {}
  Object(const Object &O) : It(O.It) { Py_IncRef(It); }
  Object &operator=(Object O) {
    std::swap(It, O.It);
    return *this;
  }
  ~Object() { Py_DecRef(It); }
  PyObject *get() const { return It; }
  PyObject *release() { return std::exchange(It, nullptr); }

private:
  PyObject *It = nullptr;
};

Object borrowed(PyObject *It) {
  Py_IncRef(It);
  return Object(It);
}

Object made(PyObject *It) {
  if (!It)
    throw PythonFailed();
  return Object(It);
}

/// Holds the interpreter's lock.
class Locked {
public:
  Locked() : State(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(State); }
  Locked(const Locked &) = delete;

private:
  PyGILState_STATE State;
};

/// Gives the lock away.
class Unlocked {
public:
  Unlocked() : State(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(State); }
  Unlocked(const Unlocked &) = delete;

private:
  PyThreadState *State;
};

Object textOf(std::string_view Text) {
  return made(PyUnicode_FromStringAndSize(
      Text.data(), static_cast<Py_ssize_t>(Text.size())));
}

/// What holds no cycle is nothing for the garbage collector, which would look
/// through many objects often.
Object uncollected(Object It) {
  PyObject_GC_UnTrack(It.get());
  return It;
}

Object numbersOf(c10::IntArrayRef Numbers) {
  Object Tuple = made(PyTuple_New(static_cast<Py_ssize_t>(Numbers.size())));
  for (size_t I = 0; I < Numbers.size(); ++I)
    PyTuple_SetItem(Tuple.get(), static_cast<Py_ssize_t>(I),
                    made(PyLong_FromLongLong(Numbers[I])).release());
  return uncollected(std::move(Tuple));
}

Object tupleOf(c10::SmallVectorImpl<Object> &Parts) {
  Object Tuple = made(PyTuple_New(static_cast<Py_ssize_t>(Parts.size())));
  for (size_t I = 0; I < Parts.size(); ++I)
    PyTuple_SetItem(Tuple.get(), static_cast<Py_ssize_t>(I),
                    Parts[I].release());
  return uncollected(std::move(Tuple));
}

/// Makes an instance of a class of typing.NamedTuple.
template <typename... Ts> Object named(PyObject *Type, Ts... Parts) {
  Object Tuple = made(PyType_GenericAlloc(
      reinterpret_cast<PyTypeObject *>(Type), sizeof...(Parts)));
  Py_ssize_t At = 0;
  (PyTuple_SetItem(Tuple.get(), At++, Parts.release()), ...);
  return uncollected(std::move(Tuple));
}

//===----------------------------------------------------------------------===//
// Operators
//===----------------------------------------------------------------------===//

enum class Shown : uint8_t { Plain, Dtype, Layout, Format };

struct Argument {
  Shown As = Shown::Plain;
  const IValue *Default = nullptr;
};

/// What is to be known of an overload: `_Operator` of recorder.py.
struct Operator {
  std::string Name, Overload; ///< whose schema it was at that address
  Object Shown;
  bool IsSilent = false, Resizes = false, Draws = false;
  std::vector<size_t> Written, Overwritten;
  std::vector<bool> Fresh;
  std::vector<Argument> Arguments;
  size_t Positional = 0; ///< arguments that are given by position
};

template <typename F> void forEachNumber(PyObject *Tuple, const F &Do) {
  for (Py_ssize_t I = 0, N = PyTuple_Size(Tuple); I < N; ++I)
    Do(PyLong_AsLong(PyTuple_GetItem(Tuple, I)));
}

Argument argumentOf(const c10::Argument &A) {
  Argument Found;
  auto Type = A.real_type();
  if (auto Optional = Type->cast<c10::OptionalType>())
    Type = Optional->getElementType();
  switch (Type->kind()) {
  case c10::TypeKind::ScalarTypeType:
    Found.As = Shown::Dtype;
    break;
  case c10::TypeKind::LayoutType:
    Found.As = Shown::Layout;
    break;
  case c10::TypeKind::MemoryFormatType:
    Found.As = Shown::Format;
    break;
  default:
    break;
  }
  if (A.default_value())
    Found.Default = &*A.default_value();
  return Found;
}

//===----------------------------------------------------------------------===//
// The text of arguments, as Python's repr gives it
//===----------------------------------------------------------------------===//

const char *layoutName(int64_t Layout) {
  static const char *const Names[] = {"torch.strided",    "torch.sparse_coo",
                                      "torch.sparse_csr", "torch._mkldnn",
                                      "torch.sparse_csc", "torch.sparse_bsr",
                                      "torch.sparse_bsc", "torch.jagged"};
  return Layout >= 0 && Layout < 8 ? Names[Layout] : nullptr;
}

const char *formatName(int64_t Format) {
  static const char *const Names[] = {
      "torch.contiguous_format", "torch.preserve_format", "torch.channels_last",
      "torch.channels_last_3d"};
  return Format >= 0 && Format < 4 ? Names[Format] : nullptr;
}

void addObject(std::string &Text, const Object &Value) {
  Object Repr = made(PyObject_Repr(Value.get()));
  Py_ssize_t Size;
  const char *Found = PyUnicode_AsUTF8AndSize(Repr.get(), &Size);
  if (!Found)
    throw PythonFailed();
  Text.append(Found, static_cast<size_t>(Size));
}

void addDouble(std::string &Text, double Value) {
  char *Found =
      PyOS_double_to_string(Value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  if (!Found)
    throw PythonFailed();
  Text += Found;
  PyMem_Free(Found);
}

/// Whether the text of a value is known here.
bool hasText(const IValue &V, Shown As) {
  if (V.isInt())
    return As != Shown::Layout && As != Shown::Format
               ? true
               : (As == Shown::Layout ? layoutName(V.toInt())
                                      : formatName(V.toInt())) != nullptr;
  return V.isNone() || V.isDouble() || V.isBool() || V.isString() ||
         V.isComplexDouble() || V.isDevice() || V.isGenerator();
}

/// The number that torch wrapped in a tensor.
IValue numberIn(const Tensor &T) {
  const void *Data = T.const_data_ptr();
  switch (T.is_cpu() ? T.scalar_type() : ScalarType::Undefined) {
  case ScalarType::Double:
    return *static_cast<const double *>(Data);
  case ScalarType::Long:
    return *static_cast<const int64_t *>(Data);
  default:
    return T.item();
  }
}

/// Adds the text of what is no tensor; devices and generators have none.
void addText(std::string &Text, const IValue &V, Shown As) {
  if (V.isDevice() || V.isGenerator())
    return;
  if (V.isTensor() && V.toTensor().defined())
    return addText(Text, numberIn(V.toTensor()), As);
  if (!Text.empty())
    Text += ", ";
  if (V.isInt()) {
    const int64_t Number = V.toInt();
    if (As == Shown::Dtype) {
      Text += "torch.";
      Text += c10::getDtypeNames(static_cast<ScalarType>(Number)).first;
    } else if (As != Shown::Plain) {
      Text += As == Shown::Layout ? layoutName(Number) : formatName(Number);
    } else {
      char Digits[24];
      Text.append(Digits, std::to_chars(Digits, std::end(Digits), Number).ptr);
    }
  } else if (V.isDouble()) {
    addDouble(Text, V.toDouble());
  } else if (V.isBool()) {
    Text += V.toBool() ? "True" : "False";
  } else if (V.isString()) {
    addObject(Text, textOf(V.toStringRef()));
  } else if (V.isComplexDouble()) {
    const auto Number = V.toComplexDouble();
    addObject(Text, made(PyComplex_FromDoubles(Number.real(), Number.imag())));
  } else {
    Text += "None"; // also a tensor that is not defined
  }
}

/// A tensor. Python gets a number that torch wrapped as the number.
bool isTensor(const IValue &V) {
  return V.isTensor() && V.toTensor().defined() &&
         !V.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

/// Calls `Do` for what is in a value and in lists of them, in order.
template <typename F> void forEachLeaf(const IValue &V, const F &Do) {
  if (V.isList()) {
    for (const IValue &Part : V.toListRef())
      forEachLeaf(Part, Do);
  } else {
    Do(V);
  }
}

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

enum class Numbers : uint8_t { Bits, Real, Complex, Unreadable };

/// What is to be known of a dtype.
struct Dtype {
  Object Name;
  Object Seed; ///< of the digests
  uint64_t SeedNumber = 0;
  size_t Bytes = 0;
  Numbers Kind = Numbers::Unreadable;
};

Numbers kindOf(ScalarType Type) {
  switch (Type) {
  case ScalarType::Half:
  case ScalarType::BFloat16:
  case ScalarType::Float:
  case ScalarType::Double:
    return Numbers::Real;
  case ScalarType::ComplexHalf:
  case ScalarType::ComplexFloat:
  case ScalarType::ComplexDouble:
    return Numbers::Complex;
  case ScalarType::Bool:
  case ScalarType::Byte:
  case ScalarType::Char:
  case ScalarType::Short:
  case ScalarType::Int:
  case ScalarType::Long:
  case ScalarType::UInt16:
  case ScalarType::UInt32:
  case ScalarType::UInt64:
  case ScalarType::Float8_e5m2:
  case ScalarType::Float8_e4m3fn:
  case ScalarType::Float8_e5m2fnuz:
  case ScalarType::Float8_e4m3fnuz:
  case ScalarType::Float8_e8m0fnu:
    return Numbers::Bits;
  default:
    return Numbers::Unreadable;
  }
}

// Half of the time of a record is spent here and in the digests.
#if defined(__x86_64__)
#define FOR_ANY_CPU                                                            \
  __attribute__((target_clones("avx512bw", "avx2", "default")))
#else
#define FOR_ANY_CPU
#endif

/// Whether one of some encodings is above infinity but for its sign. Signed
/// numbers are what vectors compare.
#define HAS_NAN(Signed, Unsigned)                                              \
  FOR_ANY_CPU bool hasNan(const void *Data, size_t Count, Unsigned Infinity) { \
    const Signed *Values = static_cast<const Signed *>(Data);                  \
    const Signed Magnitude = std::numeric_limits<Signed>::max();               \
    const Signed Bound = static_cast<Signed>(Infinity);                        \
    for (size_t Begin = 0; Begin < Count; Begin += 4096) {                     \
      const size_t End = Count - Begin < 4096 ? Count : Begin + 4096;          \
      Signed Found = 0;                                                        \
      for (size_t I = Begin; I < End; ++I)                                     \
        Found |= static_cast<Signed>((Values[I] & Magnitude) > Bound);         \
      if (Found)                                                               \
        return true;                                                           \
    }                                                                          \
    return false;                                                              \
  }

HAS_NAN(int16_t, uint16_t)
HAS_NAN(int32_t, uint32_t)
HAS_NAN(int64_t, uint64_t)

/// Encodings of infinity, and of the NaN that stands for all.
template <typename T> struct Special;
template <> struct Special<uint32_t> {
  static constexpr uint32_t Infinity = 0x7f800000, Nan = 0x7fc00000;
};
template <> struct Special<uint64_t> {
  static constexpr uint64_t Infinity = 0x7ff0000000000000,
                            Nan = 0x7ff8000000000000;
};

template <typename T>
void replaceNans(void *Data, size_t Count, T Infinity, T Nan, bool Pairs) {
  T *Values = static_cast<T *>(Data);
  const T Magnitude = static_cast<T>(~T(0)) >> 1;
  const size_t Step = Pairs ? 2 : 1;
  for (size_t I = 0; I + Step <= Count; I += Step) {
    bool Is = false;
    for (size_t Part = 0; Part < Step; ++Part)
      Is |= (Values[I + Part] & Magnitude) > Infinity;
    if (!Is)
      continue;
    Values[I] = Nan;
    if (Pairs)
      Values[I + 1] = 0;
  }
}

/// Calls `Do` with an integer of the width of a real number, and with the
/// encodings of infinity and NaN.
template <typename F> void withEncodings(ScalarType Type, const F &Do) {
  switch (Type) {
  case ScalarType::Half:
    return Do(uint16_t(0x7c00), uint16_t(0x7e00));
  case ScalarType::BFloat16:
    return Do(uint16_t(0x7f80), uint16_t(0x7fc0));
  case ScalarType::Float:
  case ScalarType::ComplexFloat:
    return Do(Special<uint32_t>::Infinity, Special<uint32_t>::Nan);
  default:
    return Do(Special<uint64_t>::Infinity, Special<uint64_t>::Nan);
  }
}

/// Whether a tensor is strided and its numbers lie in memory: is_plain() of
/// tensor_contents.py.
bool isPlain(const Tensor &T) {
  static const c10::DispatchKeySet Odd(
      {DispatchKey::Python, DispatchKey::FuncTorchGradWrapper,
       DispatchKey::FuncTorchBatched, DispatchKey::NestedTensor,
       DispatchKey::ZeroTensor, DispatchKey::Functionalize});
  return T.layout() == at::kStrided && !T.is_meta() && !T.is_quantized() &&
         !T.key_set().has_any(Odd) && T.has_storage() &&
         (!T.numel() || T.storage().nbytes());
}

/// contents() of tensor_contents.py. Empty if nothing can be read.
std::vector<Tensor> contentsOf(const Tensor &T) {
  if (isPlain(T))
    return {T};
  if (T.is_meta() || T.key_set().has(DispatchKey::Python))
    return {};
  if (T._is_zerotensor())
    return {at::zeros(T.sizes(), T.options())};
  const Tensor Own = T.detach();
  if (T.is_nested()) {
    std::vector<Tensor> All;
    for (const Tensor &Part : Own.unbind()) {
      const auto Found = contentsOf(Part);
      if (Found.empty())
        return {};
      All.insert(All.end(), Found.begin(), Found.end());
    }
    return All;
  }
  if (T.is_quantized())
    return {Own.dequantize()};
  switch (T.layout()) {
  case at::kMkldnn:
    return {Own.to_dense()};
  case at::kSparse:
    return {Own._indices(), Own._values()};
  case at::kSparseCsr:
  case at::kSparseBsr:
    return {Own.crow_indices(), Own.col_indices(), Own.values()};
  case at::kSparseCsc:
  case at::kSparseBsc:
    return {Own.ccol_indices(), Own.row_indices(), Own.values()};
  default:
    return {};
  }
}

/// sizes() of tensor_contents.py.
c10::SmallVector<int64_t, 8> sizesOf(const Tensor &T) {
  if (!T.is_nested())
    return {T.sizes().begin(), T.sizes().end()};
  c10::SmallVector<int64_t, 8> Found(static_cast<size_t>(T.dim()), -1);
  Found[0] = T.size(0);
  return Found;
}

/// A tensor whose note is known. It holds for all tensors that lie likewise in
/// the same memory, until somebody writes there.
struct Known {
  const void *Data;
  ScalarType Type;
  bool IsLate; ///< torch counts the last write when the operator has returned
  int64_t Version;
  c10::SmallVector<int64_t, 8> Sizes, Strides;
  Object Note;
};

struct Memory {
  c10::weak_intrusive_ptr<c10::StorageImpl> It;
  std::vector<Known> Notes;
};

//===----------------------------------------------------------------------===//
// The recorder
//===----------------------------------------------------------------------===//

/// XXH128_hash_t of xxhash.h, and XXH3_128bits_withSeed().
struct Hash128 {
  uint64_t Low, High;
};
using HashFunction = Hash128(const void *, size_t, uint64_t);

thread_local uint64_t LayerOf = 0; ///< which recorder the next one belongs to
thread_local int64_t Layer = -1;

std::atomic<uint64_t> Started{0};

/// What holds for all recorders. Never destroyed: the interpreter dies first.
struct Learned {
  std::unordered_map<const void *, std::unique_ptr<Operator>> Operators;
  std::unordered_map<int, Dtype> Dtypes;
  std::unordered_map<Py_ssize_t, std::vector<int64_t>> Samples;
};

Learned &learned() {
  static auto *All = new Learned;
  return *All;
}

struct Recorder {
  HashFunction *Hash; ///< or null: Digest is called
  PyObject *Mode;     ///< not counted: the mode ends this
  Object Calls, CallType, NoteType, Describe, Digest, Seed, Evenly, Forget,
      Place, NoRows, Failing, Failed;
  std::unordered_set<Py_ssize_t> Kept;
  uint64_t Number = ++Started;

  bool IsOptimizing = false;
  int64_t Steps = 0;
  std::unordered_map<uint64_t, int64_t> Nodes; ///< of autograd -> layer
  std::map<std::tuple<int64_t, int, int64_t>, Object> Places;

  std::unordered_map<c10::StorageImpl *, Memory> Storages;
  std::vector<c10::StorageImpl *> InOrder; ///< the keys of Storages
  size_t Read = 0;                         ///< bytes, since all were looked at
  size_t Next = 0;                         ///< to be looked at by sweep()

  std::map<c10::SmallVector<int64_t, 8>, Object> Shapes;
  Object Devices[c10::COMPILE_TIME_MAX_DEVICE_TYPES], Nothing, NoTuple;

  void call(const OperatorHandle &Op, Stack *S, const PyInterpreterVTable &Old);
  Object note(const Tensor &T, bool IsWritten);

private:
  Operator &operatorOf(const OperatorHandle &Op);
  Object now();
  const Dtype &dtypeOf(ScalarType Type);
  const std::vector<int64_t> &samplesOf(Py_ssize_t Count);
  std::vector<Known> *notesOf(const Tensor &T);
  void wrote(const Tensor &T);
  void sweep();
  Object shapeOf(c10::IntArrayRef Numbers);
  Object newNote(const Tensor &T);
  Object take(const uint8_t *Data, Py_ssize_t Count, size_t Bytes);
  Object digest(const Tensor &T, const Dtype &D);
  Object digestOfParts(const Tensor &T, const Dtype &D);
  Object hashOf(const void *Data, size_t Bytes, const Dtype &D);
  bool isForPython(const Operator &O, const IValue *Given) const;
  void record(const OperatorHandle &Op, Operator &O, Stack *S, Object Where);
  void run(const OperatorHandle &Op, const Operator &O, Stack *S,
           const Object &Where);
};

Recorder *Active = nullptr;
PyInterpreter *Interpreter = nullptr;
const PyInterpreterVTable *Old = nullptr;

Operator &Recorder::operatorOf(const OperatorHandle &Op) {
  const c10::FunctionSchema &Schema = Op.schema();
  auto &Slot = learned().Operators[&Schema];
  if (Slot && Slot->Name == Schema.name() &&
      Slot->Overload == Schema.overload_name())
    return *Slot;
  auto O = std::make_unique<Operator>();
  O->Name = Schema.name();
  O->Overload = Schema.overload_name();
  Object Name = textOf(c10::toString(Op.operator_name()));
  Object Said =
      made(PyObject_CallFunctionObjArgs(Describe.get(), Name.get(), nullptr));
  PyObject *Written, *Overwritten, *Fresh, *Shown;
  int Silent, Resizes, Draws;
  if (!PyArg_ParseTuple(Said.get(), "OpppOOO", &Shown, &Silent, &Resizes,
                        &Draws, &Written, &Overwritten, &Fresh))
    throw PythonFailed();
  O->Shown = borrowed(Shown);
  O->IsSilent = Silent;
  O->Resizes = Resizes;
  O->Draws = Draws;
  forEachNumber(Written, [&](long I) { O->Written.push_back(I); });
  forEachNumber(Overwritten, [&](long I) { O->Overwritten.push_back(I); });
  forEachNumber(Fresh, [&](long Is) { O->Fresh.push_back(Is); });
  for (const c10::Argument &A : Schema.arguments()) {
    O->Arguments.push_back(argumentOf(A));
    O->Positional += !A.kwarg_only();
  }
  Slot = std::move(O);
  return *Slot;
}

/// Sizes or strides; tuples that are equal are the same.
Object Recorder::shapeOf(c10::IntArrayRef Numbers) {
  Object &Known = Shapes[{Numbers.begin(), Numbers.end()}];
  if (!Known.get())
    Known = numbersOf(Numbers);
  return Known;
}

/// Whereabouts.now() of layers.py.
Object Recorder::now() {
  const auto Node = torch::autograd::get_current_node();
  if (LayerOf != Number) {
    LayerOf = Number;
    Layer = -1;
  }
  int64_t Own = Layer;
  int Phase = IsOptimizing ? 2 : Node ? 1 : 0;
  if (Node && Own < 0) {
    const auto Found = Nodes.find(Node->sequence_nr());
    Own = Found == Nodes.end() ? -1 : Found->second;
    Phase = 1;
  } else if (Own >= 0) {
    // Autograd numbers the node of an operator before it calls the kernel.
    Nodes[at::sequence_number::peek() - 1] = Own;
  }
  Object &Known = Places[{Own, Phase, Steps}];
  if (!Known.get())
    Known = made(PyObject_CallFunction(Place.get(), "LiL",
                                       static_cast<long long>(Own), Phase,
                                       static_cast<long long>(Steps)));
  return Known;
}

const Dtype &Recorder::dtypeOf(ScalarType Type) {
  Dtype &D = learned().Dtypes[static_cast<int>(Type)];
  if (!D.Name.get()) {
    Object Name = textOf(c10::getDtypeNames(Type).first);
    D.Seed =
        made(PyObject_CallFunctionObjArgs(Seed.get(), Name.get(), nullptr));
    D.SeedNumber = PyLong_AsUnsignedLongLong(D.Seed.get());
    D.Kind = kindOf(Type);
    D.Bytes = c10::elementSize(Type);
    D.Name = std::move(Name);
  }
  return D;
}

const std::vector<int64_t> &Recorder::samplesOf(Py_ssize_t Count) {
  std::vector<int64_t> &Found = learned().Samples[Count];
  if (Found.empty()) {
    Object Bytes = made(PyObject_CallFunction(Evenly.get(), "n", Count));
    char *Data;
    Py_ssize_t Size;
    if (PyBytes_AsStringAndSize(Bytes.get(), &Data, &Size))
      throw PythonFailed();
    Found.resize(static_cast<size_t>(Size) / sizeof(int64_t));
    std::memcpy(Found.data(), Data, static_cast<size_t>(Size));
  }
  return Found;
}

/// The notes that are known of tensors in the memory of one; null if it has
/// none of its own.
std::vector<Known> *Recorder::notesOf(const Tensor &T) {
  if (!T.has_storage())
    return nullptr;
  c10::StorageImpl *Storage = T.storage().unsafeGetStorageImpl();
  const auto Found = Storages.find(Storage);
  if (Found != Storages.end()) {
    // While the weak pointer is there, nobody else gets the address.
    return &Found->second.Notes;
  }
  Memory New{c10::weak_intrusive_ptr<c10::StorageImpl>(
                 T.storage().getWeakStorageImpl()),
             {}};
  InOrder.push_back(Storage);
  return &Storages.emplace(Storage, std::move(New)).first->second.Notes;
}

/// Forgets memory that was given back. What stays known of it lies between the
/// tensors that come next, and keeps them from the same places. So each call
/// looks at the newest, which die soon, and at a few others; at all of them
/// where that takes little beside what was read.
void Recorder::sweep() {
  const auto Look = [this](size_t At) {
    const auto Found = Storages.find(InOrder[At]);
    if (!Found->second.It.expired())
      return;
    Storages.erase(Found);
    InOrder[At] = InOrder.back();
    InOrder.pop_back();
  };
  const bool All = Read / 512 >= InOrder.size();
  if (All)
    Read = 0;
  const size_t Newest = All ? InOrder.size() : 4;
  for (size_t I = 0, At = InOrder.size(); I < Newest && At; ++I)
    Look(--At);
  for (size_t I = 0; I < 4 && !InOrder.empty(); ++I)
    Look(++Next % InOrder.size());
}

void Recorder::wrote(const Tensor &T) {
  if (auto *Notes = notesOf(T))
    Notes->clear();
}

/// The note of a tensor, which is made if memory or versions say that somebody
/// wrote into it since.
Object Recorder::note(const Tensor &T, bool IsWritten) {
  auto *Notes = isPlain(T) ? notesOf(T) : nullptr;
  if (!Notes || T.is_conj() || T.is_neg())
    return newNote(T);
  const void *Data = T.unsafeGetTensorImpl()->data();
  const int64_t Version =
      T.is_inference() ? -1 : static_cast<int64_t>(T._version());
  const auto IsLike = [&](const Known &K) {
    return K.Data == Data && K.Type == T.scalar_type() &&
           T.sizes() == K.Sizes && T.strides() == K.Strides;
  };
  auto Found = std::find_if(Notes->begin(), Notes->end(), IsLike);
  if (Found != Notes->end()) {
    if (Found->IsLate && Found->Version + 1 == Version) {
      Found->Version = Version;
      Found->IsLate = false;
    }
    if (Found->Version == Version)
      return Found->Note;
  }
  Object Note = newNote(T); // other threads may run meanwhile
  Notes = notesOf(T);
  Found = std::find_if(Notes->begin(), Notes->end(), IsLike);
  if (Found != Notes->end())
    Notes->erase(Found);
  Notes->push_back({Data,
                    T.scalar_type(),
                    IsWritten,
                    Version,
                    {T.sizes().begin(), T.sizes().end()},
                    {T.strides().begin(), T.strides().end()},
                    Note});
  return Note;
}

/// note_of() of digests.py.
Object Recorder::newNote(const Tensor &T) {
  const Dtype &D = dtypeOf(T.scalar_type());
  const bool IsStrided = isPlain(T);
  Object Hash = IsStrided ? Nothing : digestOfParts(T, D), Taken = NoTuple;
  if (IsStrided && D.Kind != Numbers::Unreadable) {
    // Elements in the order of the indices, in memory that the CPU reads.
    Tensor Other;
    const bool IsHalf = T.scalar_type() == ScalarType::ComplexHalf;
    if (!T.is_cpu() || T.is_conj() || T.is_neg() || !T.is_contiguous() ||
        IsHalf)
      Other = T.detach().contiguous().cpu().resolve_conj().resolve_neg();
    if (IsHalf) // as NumPy gets it
      Other = Other.to(ScalarType::ComplexFloat);
    const Tensor &Dense = Other.defined() ? Other : T;
    const auto *Data = static_cast<const uint8_t *>(Dense.const_data_ptr());
    Taken = D.Kind == Numbers::Complex
                ? Nothing
                : take(Data, static_cast<Py_ssize_t>(Dense.numel()), D.Bytes);
    Hash = digest(Dense, D);
  }
  const auto Type = T.device().type();
  Object &Device = Devices[static_cast<size_t>(Type)];
  if (!Device.get())
    Device = textOf(c10::DeviceTypeName(Type, true));
  return named(NoteType.get(), shapeOf(sizesOf(T)), D.Name,
               IsStrided ? shapeOf(T.strides()) : NoTuple, Object(Device),
               std::move(Hash), NoRows, std::move(Taken));
}

/// _note_of_parts() of digests.py.
Object Recorder::digestOfParts(const Tensor &T, const Dtype &D) {
  std::string All;
  for (const Tensor &Part : contentsOf(T)) {
    const Object Note = newNote(Part);
    char *Bytes;
    Py_ssize_t Size;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(Note.get(), 4), &Bytes, &Size))
      throw PythonFailed();
    if (!Size)
      return Nothing;
    All.append(Bytes, static_cast<size_t>(Size));
  }
  return All.empty() ? Nothing : hashOf(All.data(), All.size(), D);
}

/// The values at evenly spaced places.
Object Recorder::take(const uint8_t *Data, Py_ssize_t Count, size_t Bytes) {
  if (!Count)
    return Nothing;
  const auto &Places = samplesOf(Count);
  uint8_t Taken[16 * 16];
  if (Places.size() * Bytes > sizeof Taken) {
    PyErr_SetString(PyExc_RuntimeError, "more samples than there is room for");
    throw PythonFailed();
  }
  for (size_t I = 0; I < Places.size(); ++I)
    std::memcpy(Taken + I * Bytes,
                Data + static_cast<size_t>(Places[I]) * Bytes, Bytes);
  return made(PyBytes_FromStringAndSize(
      reinterpret_cast<char *>(Taken),
      static_cast<Py_ssize_t>(Places.size() * Bytes)));
}

/// The digest of a dense tensor; every NaN counts as the same one.
Object Recorder::digest(const Tensor &T, const Dtype &D) {
  const bool IsPair = D.Kind == Numbers::Complex;
  const size_t Count = static_cast<size_t>(T.numel()) << IsPair;
  const void *Data = T.const_data_ptr();
  Tensor Copy;
  if (D.Kind != Numbers::Bits)
    withEncodings(T.scalar_type(), [&](auto Infinity, auto Nan) {
      if (!hasNan(Data, Count, Infinity))
        return;
      Copy = T.clone();
      replaceNans(Copy.mutable_data_ptr(), Count, Infinity, Nan, IsPair);
      Data = Copy.const_data_ptr();
    });
  static char Empty;
  const size_t Bytes = T.nbytes();
  Read += Bytes;
  return hashOf(Bytes ? Data : &Empty, Bytes, D);
}

Object Recorder::hashOf(const void *Data, size_t Bytes, const Dtype &D) {
  if (Hash) {
    const Hash128 Found = Hash(Data, Bytes, D.SeedNumber);
    const uint64_t Words[] = {__builtin_bswap64(Found.High),
                              __builtin_bswap64(Found.Low)};
    return made(PyBytes_FromStringAndSize(reinterpret_cast<const char *>(Words),
                                          sizeof Words));
  }
  Object View = made(
      PyMemoryView_FromMemory(static_cast<char *>(const_cast<void *>(Data)),
                              static_cast<Py_ssize_t>(Bytes), PyBUF_READ));
  return made(PyObject_CallFunctionObjArgs(Digest.get(), View.get(),
                                           D.Seed.get(), nullptr));
}

/// Whether a call is one that the mode's own function has to see.
bool Recorder::isForPython(const Operator &O, const IValue *Given) const {
  if (O.Draws || Kept.contains(PyList_Size(Calls.get())))
    return true;
  static const c10::DispatchKeySet Odd(
      {DispatchKey::Python, DispatchKey::FuncTorchGradWrapper,
       DispatchKey::FuncTorchBatched, DispatchKey::BatchedNestedTensor,
       DispatchKey::NestedTensor, DispatchKey::ZeroTensor,
       DispatchKey::Functionalize});
  bool Is = false;
  for (size_t I = 0; I < O.Arguments.size(); ++I)
    forEachLeaf(Given[I], [&](const IValue &V) {
      Is |= isTensor(V) ? V.toTensor().key_set().has_any(Odd)
                        : !V.isTensor() && !hasText(V, O.Arguments[I].As);
    });
  return Is;
}

/// The mode is off the stack while this lives, as it is for its own function.
class Away {
public:
  Away() : Mode(TorchDispatchModeTLS::pop_stack()) {}
  ~Away() {
    TorchDispatchModeTLS::push_non_infra_mode_onto_stack(std::move(Mode));
  }
  Away(const Away &) = delete;

private:
  std::shared_ptr<c10::impl::PyObject_TorchDispatchMode> Mode;
};

void Recorder::call(const OperatorHandle &Op, Stack *S,
                    const PyInterpreterVTable &Old) {
  Operator &O = operatorOf(Op);
  Object Where = now();
  sweep();
  const size_t First = S->size() - O.Arguments.size();
  const IValue *Given = S->data() + First;
  if (O.IsSilent) {
    const IValue Resized = O.Resizes ? Given[0] : IValue();
    {
      const Away Mode;
      run(Op, O, S, Where);
    }
    if (isTensor(Resized))
      wrote(Resized.toTensor());
    return;
  }
  if (!isForPython(O, Given)) {
    const Away Mode;
    return record(Op, O, S, std::move(Where));
  }
  std::vector<IValue> Written;
  for (size_t I : O.Written)
    Written.push_back(Given[I]);
  made(PyObject_CallFunctionObjArgs(Forget.get(), nullptr));
  {
    const Unlocked Lock;
    Old.dispatch(Op, S);
  }
  for (const IValue &One : Written)
    forEachLeaf(One, [&](const IValue &V) {
      if (isTensor(V))
        wrote(V.toTensor());
    });
}

/// Runs an operator. If it fails, says which one did, where, and after how many
/// calls; whoever called it may go on.
void Recorder::run(const OperatorHandle &Op, const Operator &O, Stack *S,
                   const Object &Where) {
  try {
    const Unlocked Lock;
    Op.callBoxed(S);
  } catch (...) {
    PyObject *Type, *Value, *Trace;
    PyErr_Fetch(&Type, &Value, &Trace);
    const Object After(PyLong_FromSsize_t(PyList_Size(Calls.get())));
    const Object Said(PyTuple_Pack(3, O.Shown.get(), Where.get(), After.get()));
    if (!Said.get() || PyList_Append(Failing.get(), Said.get()))
      PyErr_Clear();
    PyErr_Restore(Type, Value, Trace);
    throw;
  }
}

/// Recorder._recorded() of recorder.py.
void Recorder::record(const OperatorHandle &Op, Operator &O, Stack *S,
                      Object Where) {
  const size_t Arguments = O.Arguments.size();
  const IValue *Given = S->data() + S->size() - Arguments;
  const auto isDefault = [&](size_t I) {
    return O.Arguments[I].Default && !(*O.Arguments[I].Default != Given[I]);
  };
  // Python gets no defaults at the end of what is given by position, and none
  // of what is given by name.
  size_t Positional = O.Positional;
  while (Positional && isDefault(Positional - 1))
    --Positional;

  c10::SmallVector<Object, 4> Inputs;
  std::string Text;
  for (size_t I = 0; I < Arguments; ++I) {
    if (I < O.Positional ? I >= Positional : isDefault(I))
      continue;
    const bool IsRead = std::find(O.Overwritten.begin(), O.Overwritten.end(),
                                  I) == O.Overwritten.end();
    forEachLeaf(Given[I], [&](const IValue &V) {
      if (!isTensor(V))
        addText(Text, V, O.Arguments[I].As);
      else if (IsRead)
        Inputs.push_back(note(V.toTensor(), false));
    });
  }
  Object Shown = textOf(Text);

  c10::SmallVector<Tensor, 2> Written;
  for (size_t At : O.Written)
    forEachLeaf(Given[At], [&](const IValue &V) {
      if (isTensor(V))
        Written.push_back(V.toTensor());
    });
  run(Op, O, S, Where);
  for (const Tensor &T : Written)
    wrote(T);
  c10::SmallVector<Object, 4> Outputs;
  const IValue *Returned = S->data() + S->size() - O.Fresh.size();
  for (size_t I = 0; I < O.Fresh.size(); ++I)
    if (O.Fresh[I])
      forEachLeaf(Returned[I], [&](const IValue &V) {
        if (isTensor(V))
          Outputs.push_back(note(V.toTensor(), false));
      });
  for (const Tensor &T : Written)
    Outputs.push_back(note(T, true));
  Object Call =
      named(CallType.get(), O.Shown, std::move(Where), tupleOf(Inputs),
            tupleOf(Outputs), std::move(Shown), borrowed(Py_None));
  if (PyList_Append(Calls.get(), Call.get()))
    throw PythonFailed();
}

//===----------------------------------------------------------------------===//
// The interpreter's table
//===----------------------------------------------------------------------===//

/// Entries of a class of the Itanium C++ ABI: a pointer to a virtual function
/// says how far from the beginning its entry lies, in bytes.
template <typename F> size_t entryOf(F Member) {
  struct {
    uintptr_t Place, Adjustment;
  } Words;
  static_assert(sizeof Member == sizeof Words);
  std::memcpy(&Words, &Member, sizeof Words);
#if defined(__aarch64__)
  return Words.Place / sizeof(void *);
#else
  return (Words.Place - 1) / sizeof(void *);
#endif
}

/// Its first entry behind those of the interpreter's table tells their number.
struct Longer : PyInterpreterVTable {
  virtual void behindTheLast() = 0;
};

/// Two entries lie before the beginning: an offset and the type.
std::vector<void *> &copied() {
  static auto *Entries = new std::vector<void *>;
  return *Entries;
}

struct {
  void **Entries;
} Ours;

void dispatch(const PyInterpreterVTable *, const OperatorHandle &Op, Stack *S) {
  const auto &Mode = TorchDispatchModeTLS::stack_len()
                         ? TorchDispatchModeTLS::get_stack_at(
                               TorchDispatchModeTLS::stack_len() - 1)
                         : nullptr;
  bool Failed = false;
  {
    const Locked Lock;
    Recorder *R = Active;
    if (R && Mode && Mode->ptr(Interpreter) == R->Mode) {
      try {
        return R->call(Op, S, *Old);
      } catch (const PythonFailed &) {
        Failed = true;
        PyObject *Type, *Value, *Trace;
        PyErr_Fetch(&Type, &Value, &Trace);
        PyErr_NormalizeException(&Type, &Value, &Trace);
        if (!R->Failed.get() && Value)
          R->Failed = borrowed(Value);
        Py_DecRef(Type);
        Py_DecRef(Value);
        Py_DecRef(Trace);
      }
    }
  }
  TORCH_CHECK(!Failed, "An operator could not be recorded.");
  Old->dispatch(Op, S);
}

void hook(PyInterpreter &Which) {
  Interpreter = &Which;
  Old = Which.vtable_;
  void *const *Theirs;
  std::memcpy(&Theirs, static_cast<const void *>(Old), sizeof Theirs);
  const size_t Count = entryOf(&Longer::behindTheLast);
  copied().assign(Theirs - 2, Theirs + Count);
  copied()[2 + entryOf(&PyInterpreterVTable::dispatch)] =
      reinterpret_cast<void *>(dispatch);
  Ours.Entries = copied().data() + 2;
  Which.vtable_ = reinterpret_cast<const PyInterpreterVTable *>(&Ours);
}

} // namespace

//===----------------------------------------------------------------------===//
// What Python calls; it holds its lock
//===----------------------------------------------------------------------===//

/// Begins to record the operators under a mode, which was just entered. Returns
/// 0, or -1 if that is not possible: another mode is being recorded, or this
/// one is not the innermost.
///
/// @param Hash the address of XXH3_128bits_withSeed(), or null
/// @param Parts the attributes of Recorder from Calls to Failing, in a tuple
/// @param Kept a tuple of the positions of calls that Python has to see
extern "C" EXPORT int udfrecorder_start(void *Hash, PyObject *Mode,
                                        PyObject *Parts, PyObject *Kept) {
  const int64_t Length = TorchDispatchModeTLS::stack_len();
  if (Active || !Length)
    return -1;
  const auto &Top = TorchDispatchModeTLS::get_stack_at(Length - 1);
  if (Top->ptr(&Top->pyinterpreter()) != Mode)
    return -1;
  auto R = std::make_unique<Recorder>();
  R->Hash = reinterpret_cast<HashFunction *>(Hash);
  R->Mode = Mode;
  R->Nothing = Object(PyBytes_FromStringAndSize("", 0));
  R->NoTuple = Object(PyTuple_New(0));
  Object *const Slots[] = {&R->Calls,  &R->CallType, &R->NoteType, &R->Describe,
                           &R->Digest, &R->Seed,     &R->Evenly,   &R->Forget,
                           &R->Place,  &R->NoRows,   &R->Failing};
  if (PyTuple_Size(Parts) != std::size(Slots))
    return -1;
  for (size_t I = 0; I < std::size(Slots); ++I)
    *Slots[I] = borrowed(PyTuple_GetItem(Parts, static_cast<Py_ssize_t>(I)));
  forEachNumber(Kept, [&](long At) { R->Kept.insert(At); });
  hook(Top->pyinterpreter());
  Active = R.release();
  return 0;
}

/// Ends what a start began. Returns the error that ended the run, or None.
extern "C" EXPORT PyObject *udfrecorder_stop() {
  const std::unique_ptr<Recorder> R(std::exchange(Active, nullptr));
  if (Interpreter->vtable_ ==
      reinterpret_cast<const PyInterpreterVTable *>(&Ours))
    Interpreter->vtable_ = Old;
  PyErr_Clear();
  return (R->Failed.get() ? R->Failed : borrowed(Py_None)).release();
}

/// Returns the note of a tensor, which `_cdata` is the address of.
extern "C" EXPORT PyObject *udfrecorder_note(void *Address) try {
  const Tensor T(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::
                     reclaim_copy(static_cast<c10::TensorImpl *>(Address)));
  const Away Mode;
  return Active->note(T, false).release();
} catch (const PythonFailed &) {
  return nullptr;
} catch (const std::exception &Error) {
  PyErr_SetString(PyExc_RuntimeError, Error.what());
  return nullptr;
}

/// The layer that runs in this thread from now on, as a number; -1 for none.
extern "C" EXPORT void udfrecorder_layer(int64_t Number) {
  if (!Active)
    return;
  LayerOf = Active->Number;
  Layer = Number;
}

/// Whether an optimizer runs, and the number of steps that ended.
extern "C" EXPORT void udfrecorder_step(int IsOptimizing, int64_t Steps) {
  if (!Active)
    return;
  Active->IsOptimizing = IsOptimizing;
  Active->Steps = Steps;
}
