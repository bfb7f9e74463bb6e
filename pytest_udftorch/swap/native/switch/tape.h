//===- tape.h - What a kernel in Python did, played again -----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A kernel in Python whose steps depend on nothing but the kinds of its
// arguments (dtypes, sizes, strides, devices, alignment, numbers) calls the
// same operators and launches the same kernels for equal kinds. The first calls
// of a kind record these steps; later ones play them without Python and without
// its lock.
//
// at::RecordFunction tells of the operators that the kernel calls, launches.py
// and launcher.py of the kernels that it launches. What a tape cannot hold
// refuses it, and calls of that kind stay in Python: a number read back from a
// tensor, a tensor that no step made. A tape counts only once two calls have
// recorded the same.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_TAPE_H
#define UDFTORCH_TAPE_H

#include "cuda_kernels.h"
#include "python_kernel.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>
#include <unordered_map>
#include <unordered_set>

namespace {
namespace tape {

using c10::IValue;

/// Whether a tensor is a number that stands in place of one.
bool isNumber(const Tensor &X) {
  return X.unsafeGetTensorImpl()->is_wrapped_number();
}

//===----------------------------------------------------------------------===//
// Kinds of calls
//===----------------------------------------------------------------------===//

/// What tells kinds of calls apart, in words.
using Words = c10::SmallVector<uint64_t, 96>;

/// Goes up when kernels may do something else for equal arguments.
std::atomic<uint64_t> Generation{1};

/// Describes the arguments of a call, and collects its tensors.
class Description {
public:
  /// Device becomes that of the first tensor that is not on the CPU.
  Description(c10::ArrayRef<IValue> Arguments) {
    auto &Context = at::globalContext();
    Of.push_back(Generation.load(std::memory_order_relaxed));
    Of.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) |
                 uint64_t(Context.deterministicAlgorithms()) << 8 |
                 uint64_t(Context.deterministicFillUninitializedMemory()) << 9 |
                 uint64_t(cuda::IsCounting.load(std::memory_order_relaxed))
                     << 10 |
                 uint64_t(Context.userEnabledCuDNN()) << 11 |
                 autocast(c10::DeviceType::CUDA) << 16 |
                 autocast(c10::DeviceType::CPU) << 32);
    for (const IValue &V : Arguments)
      add(V);
    // Python reads numbers on the CPU without asking an operator.
    Odd |= Device && HasCpu;
  }

  Words Of;
  c10::SmallVector<Tensor, 8> Tensors; ///< each once
  std::optional<c10::Device> Device;
  bool Odd = false; ///< an argument that no tape knows

private:
  bool HasCpu = false;

  static uint64_t autocast(c10::DeviceType Type) {
    return at::autocast::is_autocast_enabled(Type)
               ? 1 + static_cast<uint64_t>(
                         at::autocast::get_autocast_dtype(Type))
               : 0;
  }

  void add(const IValue &V) {
    if (V.isTensor()) {
      add(V.toTensor());
    } else if (V.isNone()) {
      Of.push_back(1);
    } else if (V.isInt()) {
      Of.push_back(2);
      Of.push_back(static_cast<uint64_t>(V.toInt()));
    } else if (V.isDouble()) {
      Of.push_back(3);
      Of.push_back(std::bit_cast<uint64_t>(V.toDouble()));
    } else if (V.isBool()) {
      Of.push_back(4 + V.toBool());
    } else if (V.isDevice()) {
      Of.push_back(6);
      Of.push_back(static_cast<uint64_t>(V.toDevice().type()) << 8 |
                   static_cast<uint8_t>(V.toDevice().index()));
    } else if (V.isString()) {
      const auto Text = V.toStringView();
      Of.push_back(11);
      Of.push_back(Text.size());
      for (char Each : Text)
        Of.push_back(static_cast<unsigned char>(Each));
    } else if (V.isList()) {
      const auto List = V.toListRef();
      Of.push_back(7);
      Of.push_back(List.size());
      for (const IValue &Item : List)
        add(Item);
    } else {
      Odd = true;
    }
  }

  void add(const Tensor &X) {
    if (!X.defined()) {
      Of.push_back(8);
      return;
    }
    for (size_t I = 0; I < Tensors.size(); ++I)
      if (Tensors[I].is_same(X)) {
        Of.push_back(9);
        Of.push_back(I);
        return;
      }
    if (isNumber(X)) {
      uint64_t Bits = 0;
      Odd |= X.itemsize() > sizeof Bits;
      std::memcpy(&Bits, X.const_data_ptr(),
                  std::min(X.itemsize(), sizeof Bits));
      Of.push_back(12 | static_cast<uint64_t>(X.scalar_type()) << 8);
      Of.push_back(Bits);
      return;
    }
    if (X.layout() != c10::kStrided || !X.has_storage() || hasNames(X) ||
        X.key_set().has(c10::DispatchKey::Python) ||
        X.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      Odd = true;
      return;
    }
    const auto Address = reinterpret_cast<uintptr_t>(X.const_data_ptr());
    const auto Dims = static_cast<uint64_t>(X.dim());
    const c10::Device On = X.device();
    HasCpu |= On.is_cpu();
    if (!Device && !On.is_cpu())
      Device = On;
    Of.push_back(10 | static_cast<uint64_t>(X.scalar_type()) << 8 |
                 static_cast<uint64_t>(On.type()) << 16 |
                 static_cast<uint64_t>(static_cast<uint8_t>(On.index())) << 24 |
                 (Address & 15) << 32 | uint64_t(!Address) << 36 |
                 uint64_t(X.is_conj()) << 37 | uint64_t(X.is_neg()) << 38 |
                 uint64_t(X.requires_grad()) << 39 | Dims << 40);
    for (uint64_t I = 0; I < Dims; ++I)
      Of.push_back(static_cast<uint64_t>(X.size(static_cast<int64_t>(I))));
    for (uint64_t I = 0; I < Dims; ++I)
      Of.push_back(static_cast<uint64_t>(X.stride(static_cast<int64_t>(I))));
    Tensors.push_back(X);
  }
};

//===----------------------------------------------------------------------===//
// Tapes
//===----------------------------------------------------------------------===//

/// An argument or a result: a value, or the tensors of slots.
struct Operand {
  enum Kind : uint8_t { Value, Slot, Slots, OptionalSlots } Is = Value;
  IValue Constant;
  std::vector<int> At; ///< -1 for None among several
};

/// A compiled kernel, launched. A word is the address of a tensor, or a drawn
/// number, where At says so.
/// How a launch describes a dense matrix of bytes to the units that copy tiles
/// of it (CUtensorMap, in the driver's manual).
struct Map {
  unsigned Parameter = 0; ///< whose word is the address
  uint64_t Rows = 0, Columns = 0, Across = 0;
  uint32_t Box[2] = {}; ///< columns and rows of a tile
  int Swizzle = 0;
  bool operator==(const Map &) const = default;
};

/// The most of them.
constexpr size_t MostMaps = 2;

struct Launch {
  void *Function = nullptr;
  unsigned Threads = 0, Shared = 0, Programs = 0;
  std::vector<uint64_t> Words;
  std::vector<int> At; ///< a slot, -1, or -2 - I for the number drawn as I-th
  std::vector<Map> Maps;
  std::atomic<bool> *Ran = nullptr;
};

/// Memory that a step makes and does not write to.
struct Layout {
  std::vector<int64_t> Sizes, Strides;
  c10::TensorOptions Options;
};

struct Step {
  enum Kind : uint8_t { Call, Stock, Make, Draw, Launch } Is = Call;
  std::optional<OperatorHandle> Op;
  const Board *Of = nullptr; ///< whose stock kernel is called
  Layout Like;               ///< of memory that is made
  std::vector<Operand> Given;
  std::vector<Operand> Made; ///< slots alone
  tape::Launch Launched;
  std::vector<int> Dead; ///< slots that no later step reads
};

/// What a slot held when the tape was recorded.
struct Seen {
  c10::ScalarType Dtype;
  int64_t Elements;
};

struct Tape {
  std::vector<Step> Steps;
  std::vector<Operand> Results;
  std::vector<Seen> Slots;
  std::vector<Tensor> Constants; ///< kept for their addresses
  size_t Inputs = 0;
  bool Draws = false;
};

bool isScalar(const Tensor &X) { return X.is_cpu() && !X.dim(); }

bool operator==(const Operand &A, const Operand &B) {
  if (A.Is != B.Is || A.At != B.At)
    return false;
  const IValue &X = A.Constant, &Y = B.Constant;
  if (X.isTensor() && Y.isTensor()) {
    const Tensor &P = X.toTensor(), &Q = Y.toTensor();
    if (P.is_same(Q))
      return true;
    // Numbers in place of tensors are made for each call.
    return P.defined() && Q.defined() && isScalar(P) && isScalar(Q) &&
           P.scalar_type() == Q.scalar_type() &&
           !std::memcmp(P.const_data_ptr(), Q.const_data_ptr(), P.itemsize());
  }
  if (X.isDouble() && Y.isDouble()) // NaN is NaN, 0 is not -0
    return std::bit_cast<uint64_t>(X.toDouble()) ==
           std::bit_cast<uint64_t>(Y.toDouble());
  return X.tagKind() == Y.tagKind() && X == Y;
}

bool operator==(const Launch &A, const Launch &B) {
  return A.Function == B.Function && A.Threads == B.Threads &&
         A.Shared == B.Shared && A.Programs == B.Programs &&
         A.Words == B.Words && A.At == B.At && A.Maps == B.Maps;
}

bool operator==(const Layout &A, const Layout &B) {
  return A.Sizes == B.Sizes && A.Strides == B.Strides &&
         A.Options.dtype() == B.Options.dtype() &&
         A.Options.device() == B.Options.device();
}

bool operator==(const Step &A, const Step &B) {
  return A.Is == B.Is && A.Of == B.Of && A.Like == B.Like &&
         A.Op.has_value() == B.Op.has_value() &&
         (!A.Op || A.Op->operator_name() == B.Op->operator_name()) &&
         A.Given == B.Given && A.Made == B.Made && A.Launched == B.Launched &&
         A.Dead == B.Dead;
}

bool operator==(const Tape &A, const Tape &B) {
  return A.Steps == B.Steps && A.Results == B.Results &&
         A.Slots.size() == B.Slots.size();
}

//===----------------------------------------------------------------------===//
// Recording
//===----------------------------------------------------------------------===//

/// While one lives, this thread's kernel in Python is recorded. Those that it
/// calls through torch are steps of it, whatever they do inside.
class Recording {
public:
  explicit Recording(const Description &D)
      : Device(D.Device), Outer(Innermost) {
    Made.Inputs = D.Tensors.size();
    for (const Tensor &X : D.Tensors)
      hold(X);
    if (!at::isRecordFunctionEnabled())
      refuse("torch follows no operators here");
    if (!Callback)
      Callback =
          at::addThreadLocalCallback(at::RecordFunctionCallback(start, end)
                                         .needsInputs(true)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
    Innermost = this;
  }
  ~Recording() {
    Innermost = Outer;
    if (!Outer) {
      at::removeCallback(Callback);
      Callback = 0;
    }
  }
  Recording(const Recording &) = delete;
  Recording &operator=(const Recording &) = delete;

  /// That of the kernel in Python that this thread is in, if the step that is
  /// told of is its own.
  static Recording *current() {
    return Innermost && !Innermost->Depth ? Innermost : nullptr;
  }

  /// Says why there will be no tape, and lets go of the tensors that it held.
  void refuse(std::string Reason) {
    if (!Why.empty())
      return;
    Why = std::move(Reason);
    Held.clear();
    Copies.clear();
    SlotOf.clear();
  }

  void launch(Launch &&New) {
    Step Next;
    Next.Is = Step::Launch;
    Next.Launched = std::move(New);
    Made.Steps.push_back(std::move(Next));
  }

  /// Begins a call of a stock kernel. What it does inside, until aside(-1), is
  /// no step.
  void beginStock(const Board &B, c10::ArrayRef<IValue> Given) {
    Step Next;
    Next.Is = Step::Stock;
    Next.Op = B.Op;
    Next.Of = &B;
    add(std::move(Next), Given);
    aside(1);
  }
  void endStock(c10::ArrayRef<IValue> Results) { finishStep(Results); }

  /// Draws a number from torch's generator; returns which it is.
  size_t draw(uint64_t &Number) {
    ++Depth;
    Number = drawn();
    --Depth;
    Step Next;
    Next.Is = Step::Draw;
    Made.Steps.push_back(std::move(Next));
    Made.Draws = true;
    return Draws++;
  }

  /// What is done until the next call with -1 is no step: a table is made that
  /// stays.
  static void aside(int More) {
    if (Innermost) {
      Innermost->Depth += static_cast<unsigned>(More);
      Innermost->Aside += static_cast<unsigned>(More);
    }
  }
  void constant(const Tensor &X) {
    if (slot(X) < 0 && Constants.emplace(X.unsafeGetTensorImpl()).second)
      Made.Constants.push_back(X);
  }
  bool isConstant(const Tensor &X) const {
    return Constants.count(X.unsafeGetTensorImpl());
  }

  /// A number of the generator of the CPU, as its `random_` fills int64.
  static uint64_t drawn() {
    return static_cast<uint64_t>(*static_cast<const int64_t *>(
        at::empty({}, at::kLong).random_(std::nullopt).const_data_ptr()));
  }

  /// The slot of a tensor, or -1.
  int slot(const Tensor &X) {
    const auto Found = SlotOf.find(X.unsafeGetTensorImpl());
    if (Found != SlotOf.end())
      return Found->second;
    // What makes tensors in Python hands on a copy without memory of its own.
    for (size_t I = Held.size(); I-- > 0;)
      if (isCopy(Held[I], X)) {
        Copies.push_back(X);
        const int At = SlotOf.at(Held[I].unsafeGetTensorImpl());
        SlotOf.emplace(X.unsafeGetTensorImpl(), At);
        return At;
      }
    return -1;
  }

  /// The tape, once the kernel has returned \p Results; null if it was refused.
  std::shared_ptr<const Tape> finish(c10::ArrayRef<IValue> Results) {
    for (const IValue &V : Results)
      Made.Results.push_back(operand(V));
    if (!Why.empty())
      return nullptr;
    dropUnused();
    return std::make_shared<Tape>(std::move(Made));
  }

  std::string Why; ///< why it was refused; empty if it was not

private:
  static bool isCopy(const Tensor &X, const Tensor &Y) {
    return X.has_storage() && Y.has_storage() &&
           X.storage().is_alias_of(Y.storage()) &&
           X.scalar_type() == Y.scalar_type() && X.sizes() == Y.sizes() &&
           X.strides() == Y.strides() &&
           X.storage_offset() == Y.storage_offset() &&
           X.is_conj() == Y.is_conj() && X.is_neg() == Y.is_neg();
  }

  int hold(const Tensor &X) {
    if (!Why.empty())
      return -1;
    const auto [At, New] =
        SlotOf.emplace(X.unsafeGetTensorImpl(), static_cast<int>(Held.size()));
    if (New) {
      Held.push_back(X);
      Made.Slots.push_back({X.scalar_type(), X.numel()});
    } else if (Made.Slots[static_cast<size_t>(At->second)].Elements !=
               X.numel()) {
      refuse("a tensor that changes its size");
    }
    return At->second;
  }

  int known(const Tensor &X) {
    const int Found = slot(X);
    if (Found < 0)
      refuse("a tensor that no step made");
    return Found;
  }

  Operand operand(const IValue &V) {
    Operand Found;
    if (V.isTensor() && V.toTensor().defined()) {
      const Tensor &X = V.toTensor();
      if (isConstant(X) || (slot(X) < 0 && isNumber(X))) {
        Found.Constant = V;
        return Found;
      }
      Found.Is = Operand::Slot;
      Found.At = {known(X)};
    } else if (V.isTensorList() || (V.isList() && holdsTensors(V))) {
      Found.Is = V.isTensorList() ? Operand::Slots : Operand::OptionalSlots;
      for (const IValue &Item : V.toListRef())
        Found.At.push_back(Item.isTensor() && Item.toTensor().defined()
                               ? known(Item.toTensor())
                               : -1);
    } else if (V.isGenerator() || V.isStorage() || V.isObject() ||
               V.isPyObject() || V.isSymInt() || V.isSymFloat()) {
      refuse("an argument that a tape cannot hold");
    } else {
      Found.Constant = V;
    }
    return Found;
  }

  static bool holdsTensors(const IValue &V) {
    const auto Type = V.toList().elementType();
    return Type->isSubtypeOf(
        *c10::OptionalType::create(c10::TensorType::get()));
  }

  /// Refuses an operator whose result has a size that depends on numbers, also
  /// inside of another one.
  void seeSizes(const at::RecordFunction &Fn) {
    const auto Name = Fn.operator_name();
    if (!Name || Aside)
      return;
    const auto Op = c10::Dispatcher::singleton().findOp(*Name);
    if (Op && Op->hasTag(at::Tag::dynamic_output_shape) &&
        Name->name != "aten::index")
      refuse(Name->name + " returns as many numbers as it finds");
  }

  void begin(const at::RecordFunction &Fn) {
    const auto Name = Fn.operator_name();
    Step Next;
    if (Name)
      Next.Op = c10::Dispatcher::singleton().findOp(*Name);
    if (!Next.Op || !Next.Op->hasSchema())
      refuse("a call that is no operator");
    else if (Name->name == "aten::resize_" || Name->name == "aten::set_")
      refuse("a tensor that changes its size");
    else if (Name->name == "aten::lift_fresh")
      refuse("a tensor that is made of Python's numbers");
    add(std::move(Next), Fn.inputs());
  }

  void add(Step &&Next, c10::ArrayRef<const IValue> Given) {
    for (const IValue &V : Given)
      Next.Given.push_back(operand(V));
    if (Next.Op && Next.Op->hasSchema() &&
        Given.size() != Next.Op->schema().arguments().size())
      refuse("an operator whose arguments are not told");
    Made.Steps.push_back(std::move(Next));
  }

  void finishStep(c10::ArrayRef<IValue> Outputs) {
    Step &Last = Made.Steps.back();
    if (!Last.Op || !Last.Op->hasSchema())
      return;
    if (Outputs.size() != Last.Op->schema().returns().size()) {
      refuse("an operator that failed");
      return;
    }
    for (const IValue &V : Outputs) {
      Operand Found;
      if (V.isTensor()) {
        Found.Is = Operand::Slot;
        Found.At = {output(V.toTensor())};
      } else if (V.isTensorList()) {
        Found.Is = Operand::Slots;
        for (const IValue &Item : V.toListRef())
          Found.At.push_back(output(Item.toTensor()));
      } else if (V.isInt() && Last.Is == Step::Stock) {
        Found.Constant = V; // a size
      } else if (isSettled(Last)) {
        Made.Steps.pop_back(); // it is what it was
        return;
      } else {
        refuse(Last.Op->operator_name().name + " returns what is no tensor");
      }
      Last.Made.push_back(std::move(Found));
    }
    if (makesMemory(*Last.Op) && Last.Is == Step::Call)
      makeMemory(Last, Outputs[0].toTensor());
  }

  static bool makesMemory(const OperatorHandle &Op) {
    static const std::unordered_set<std::string> Known = {
        "aten::empty", "aten::empty_like", "aten::empty_strided",
        "aten::new_empty", "aten::new_empty_strided"};
    return Known.count(Op.operator_name().name) &&
           Op.operator_name().overload_name != "out";
  }

  /// Makes the memory of a result at once, instead of asking operators for it.
  static void makeMemory(Step &S, const Tensor &X) {
    const auto Pinned = S.Op->schema().argumentIndexWithName("pin_memory");
    const IValue *Pin =
        Pinned ? &S.Given[static_cast<size_t>(*Pinned)].Constant : nullptr;
    if (X.layout() != c10::kStrided || X.is_meta() ||
        (Pin && Pin->isBool() && Pin->toBool()) ||
        at::globalContext().deterministicFillUninitializedMemory())
      return;
    S.Is = Step::Make;
    S.Like = {X.sizes().vec(), X.strides().vec(), X.options()};
    S.Given.clear();
  }

  /// Whether an operator that returns no tensor returns the same at each call.
  static bool isSettled(const Step &S) {
    const std::string &Name = S.Op->operator_name().name;
    return Name == "aten::result_type" || Name == "aten::can_cast" ||
           std::all_of(S.Given.begin(), S.Given.end(),
                       [](const Operand &O) { return O.Is == Operand::Value; });
  }

  int output(const Tensor &X) {
    if (!X.defined())
      return -1;
    if (Device && X.is_cpu())
      refuse("a tensor that goes to the CPU");
    return hold(X);
  }

  /// Whether a step only makes tensors.
  static bool isPure(const Step &S) {
    if (S.Is == Step::Make)
      return true;
    if (S.Is != Step::Call || S.Op->hasTag(at::Tag::nondeterministic_seeded))
      return false;
    for (const auto &A : S.Op->schema().arguments())
      if (A.alias_info() && A.alias_info()->isWrite())
        return false;
    return true;
  }

  template <class F> static void each(const std::vector<Operand> &All, F Do) {
    for (const Operand &Each : All)
      for (int At : Each.At)
        if (At >= 0)
          Do(At);
  }

  /// Drops steps whose results nobody reads, and notes when slots end.
  void dropUnused() {
    std::vector<bool> Read(Made.Slots.size());
    const auto Use = [&](int At) { Read[static_cast<size_t>(At)] = true; };
    each(Made.Results, Use);
    std::vector<Step> Kept;
    for (auto S = Made.Steps.rbegin(); S != Made.Steps.rend(); ++S) {
      bool Needed = !isPure(*S);
      each(S->Made, [&](int At) { Needed |= Read[static_cast<size_t>(At)]; });
      if (!Needed)
        continue;
      const auto Last = [&](int At) {
        if (!Read[static_cast<size_t>(At)] &&
            static_cast<size_t>(At) >= Made.Inputs)
          S->Dead.push_back(At);
        Use(At);
      };
      each(S->Made, Last);
      each(S->Given, Last);
      for (int At : S->Launched.At)
        if (At >= 0)
          Last(At);
      Kept.push_back(std::move(*S));
    }
    Made.Steps.assign(std::make_move_iterator(Kept.rbegin()),
                      std::make_move_iterator(Kept.rend()));
  }

  static std::unique_ptr<at::ObserverContext>
  start(const at::RecordFunction &Fn) {
    if (Recording *R = Innermost) {
      R->seeSizes(Fn);
      if (!R->Depth++)
        R->begin(Fn);
    }
    return nullptr;
  }
  static void end(const at::RecordFunction &Fn, at::ObserverContext *) {
    if (Recording *R = Innermost)
      if (R->Depth && !--R->Depth)
        R->finishStep(Fn.outputs());
  }

  Tape Made;
  std::optional<c10::Device> Device;
  std::vector<Tensor> Held; ///< so that no tensor takes another's address
  std::vector<Tensor> Copies;
  std::unordered_set<const c10::TensorImpl *> Constants;
  size_t Draws = 0;
  std::unordered_map<const c10::TensorImpl *, int> SlotOf;
  unsigned Depth = 0; ///< of calls of operators
  unsigned Aside = 0; ///< of what is no step
  Recording *Outer;
  static inline thread_local Recording *Innermost = nullptr;
  static inline thread_local at::CallbackHandle Callback = 0;
};

//===----------------------------------------------------------------------===//
// Playing
//===----------------------------------------------------------------------===//

/// Whether this thread is in a stock kernel that a kernel in Python called:
/// what operators do there depends on that.
thread_local bool IsPaused = false;

struct Pause {
  Pause() : Before(std::exchange(IsPaused, true)) {}
  ~Pause() { IsPaused = Before; }
  bool Before;
};

/// How many watch what kernels in Python do.
std::atomic<int> Watchers{0};

class Player {
public:
  Player(const Tape &T, const Description &D)
      : T(T), Device(D.Device), Slots(T.Slots.size()) {
    std::copy(D.Tensors.begin(), D.Tensors.end(), Slots.begin());
  }

  /// Runs the steps, and pushes the results.
  void play(c10::Stack &Stack) {
    c10::Stack Inner;
    for (const Step &S : T.Steps) {
      switch (S.Is) {
      case Step::Call:
      case Step::Stock:
        call(S, Inner);
        break;
      case Step::Make:
        Slots[static_cast<size_t>(S.Made[0].At[0])] = memory(S.Like);
        break;
      case Step::Draw:
        Drawn.push_back(Recording::drawn());
        break;
      case Step::Launch:
        launch(S.Launched);
      }
      for (int At : S.Dead)
        Slots[static_cast<size_t>(At)].reset();
    }
    for (const Operand &Result : T.Results)
      Stack.push_back(value(Result));
  }

private:
  IValue value(const Operand &O) const {
    switch (O.Is) {
    case Operand::Value:
      return O.Constant;
    case Operand::Slot:
      return Slots[static_cast<size_t>(O.At[0])];
    case Operand::Slots: {
      c10::List<Tensor> Made;
      for (int At : O.At)
        Made.push_back(At < 0 ? Tensor() : Slots[static_cast<size_t>(At)]);
      return Made;
    }
    case Operand::OptionalSlots: {
      c10::List<std::optional<Tensor>> Made;
      for (int At : O.At)
        Made.push_back(At < 0 ? std::optional<Tensor>()
                              : Slots[static_cast<size_t>(At)]);
      return Made;
    }
    }
    return {};
  }

  void call(const Step &S, c10::Stack &Inner) {
    Inner.clear();
    for (const Operand &Each : S.Given)
      Inner.push_back(value(Each));
    if (S.Is == Step::Stock) {
      const Pause Here;
      S.Of->Stock.callBoxed(S.Of->Op, c10::DispatchKeySet(S.Of->Key), &Inner);
    } else {
      S.Op->callBoxed(&Inner);
    }
    for (size_t I = 0; I < S.Made.size(); ++I) {
      const Operand &To = S.Made[I];
      if (To.Is == Operand::Slot) {
        if (To.At[0] >= 0)
          keep(To.At[0], Inner[I].toTensor());
        continue;
      }
      if (To.Is == Operand::Value)
        continue;
      const auto List = Inner[I].toListRef();
      for (size_t J = 0; J < To.At.size(); ++J)
        if (To.At[J] >= 0)
          keep(To.At[J], List[J].toTensor());
    }
  }

  static Tensor memory(const Layout &L) {
    const cuda::Driver *D =
        L.Options.device().is_cuda() ? cuda::driver() : nullptr;
    if (D && D->Empty)
      return Tensor(D->Empty(L.Sizes, L.Strides,
                             c10::typeMetaToScalarType(L.Options.dtype()),
                             L.Options.device()));
    return at::empty_strided(L.Sizes, L.Strides, L.Options);
  }

  void keep(int At, const Tensor &X) {
    const Seen &Before = T.Slots[static_cast<size_t>(At)];
    TORCH_CHECK(X.scalar_type() == Before.Dtype && X.numel() == Before.Elements,
                "An override of pytest_udftorch was recorded with other "
                "results of the operators that it calls. Another tool may have "
                "overridden one of these while a session is open.");
    Slots[static_cast<size_t>(At)] = X;
  }

  static void encode(const cuda::Driver &D, const Map &M, uint64_t Address,
                     void *To) {
    const uint64_t Sizes[2] = {M.Columns, M.Rows};
    const uint32_t Steps[2] = {1, 1};
    constexpr int Bytes = 0, Plain = 0, By128 = 2, Zeros = 0;
    cuda::check(D,
                D.Encode(To, Bytes, 2, reinterpret_cast<void *>(Address), Sizes,
                         &M.Across, M.Box, Steps, Plain, M.Swizzle, By128,
                         Zeros),
                "cuTensorMapEncodeTiled");
  }

  void launch(const Launch &L) const {
    const cuda::Driver *D = cuda::driver();
    TORCH_CHECK(D && Device, "A recorded kernel has no GPU.");
    uint64_t Values[cuda::MostParameters];
    void *Parameters[cuda::MostParameters + 2];
    for (size_t I = 0; I < L.Words.size(); ++I) {
      const int At = L.At[I];
      if (At >= 0)
        Values[I] = reinterpret_cast<uint64_t>(
            Slots[static_cast<size_t>(At)].mutable_data_ptr());
      else
        Values[I] = At == -1 ? L.Words[I] : Drawn[static_cast<size_t>(-2 - At)];
      Parameters[I] = &Values[I];
    }
    // The driver wants them at multiples of 64 bytes.
    alignas(64) unsigned char Maps[MostMaps][128];
    for (size_t I = 0; I < L.Maps.size(); ++I) {
      encode(*D, L.Maps[I], Values[L.Maps[I].Parameter], Maps[I]);
      Parameters[L.Maps[I].Parameter] = Maps[I];
    }
    cuda::launch(*D, L.Function, L.Programs, L.Threads, L.Shared,
                 Device->index(), Parameters,
                 static_cast<unsigned>(L.Words.size()));
    if (!L.Ran->load(std::memory_order_relaxed))
      L.Ran->store(true, std::memory_order_relaxed);
  }

  const Tape &T;
  std::optional<c10::Device> Device;
  std::vector<Tensor> Slots;
  std::vector<uint64_t> Drawn;
};

/// Whether the generator of a GPU draws what that of the CPU does: see `_key`
/// of variates.py.
bool drawsTogether(const std::optional<c10::Device> &Device) {
  auto &Context = at::globalContext();
  return !Device || Context.defaultGenerator(*Device).current_seed() ==
                        Context.defaultGenerator(c10::kCPU).current_seed();
}

/// Calls that were played, and why calls were not recorded, for tests and
/// people.
std::atomic<uint64_t> Played{0};

std::map<std::string, uint64_t> &refusals() {
  static auto *All = new std::map<std::string, uint64_t>;
  return *All;
}

void note(const std::string &Refusal) {
  std::lock_guard<std::mutex> Guard(Lock);
  ++refusals()[Refusal];
}

/// The kernel of a target that records the one in Python below it.
class Kernel final : public c10::OperatorKernel {
public:
  Kernel(const Board &B, KernelFunction InPython)
      : B(B), Below(std::move(InPython)),
        Count(B.Op.schema().arguments().size()) {}

  void operator()(const OperatorHandle &Op, c10::DispatchKeySet Keys,
                  c10::Stack *Stack) {
    if (IsPaused || Watchers.load(std::memory_order_relaxed)) {
      Below.callBoxed(Op, Keys, Stack);
      return;
    }
    const auto Arguments =
        c10::ArrayRef<IValue>(*Stack).slice(Stack->size() - Count);
    const Description D(Arguments);
    bool Records = false;
    const auto Found = D.Odd ? nullptr : find(D.Of, Records);
    if (Found && !(Found->Draws && !drawsTogether(D.Device))) {
      Played.fetch_add(1, std::memory_order_relaxed);
      play(*Found, D, *Stack);
    } else if (Records) {
      record(D, Op, Keys, *Stack);
    } else {
      Below.callBoxed(Op, Keys, Stack);
    }
  }

private:
  /// What is known of a kind. It is hopeless after as many refusals.
  struct Entry {
    std::shared_ptr<const Tape> Recorded;
    bool IsTrusted = false;
    unsigned Refusals = 0;
  };
  static constexpr unsigned Hopeless = 3;
  static constexpr size_t Most = 1024;

  struct Hash {
    size_t operator()(const std::vector<uint64_t> &Of) const {
      uint64_t H = Of.size();
      for (uint64_t W : Of)
        H = (H ^ W) * 0x9E3779B97F4A7C15ull, H ^= H >> 29;
      return H;
    }
  };

  /// The tape of a kind; null with \p Records set if its steps should be
  /// recorded.
  std::shared_ptr<const Tape> find(const Words &Of, bool &Records) {
    std::vector<uint64_t> Wanted(Of.begin(), Of.end());
    std::lock_guard<std::mutex> Guard(Mutex);
    const auto Found = Entries.find(Wanted);
    if (Found == Entries.end()) {
      Records = true;
      return nullptr;
    }
    Records = Found->second.Refusals < Hopeless;
    return Found->second.IsTrusted ? Found->second.Recorded : nullptr;
  }

  void play(const Tape &T, const Description &D, c10::Stack &Stack) {
    Unseen Here(/*Below=*/true);
    c10::OptionalDeviceGuard There(D.Device);
    c10::Stack Results;
    Player(T, D).play(Results);
    torch::jit::drop(Stack, Count);
    for (IValue &V : Results)
      Stack.push_back(std::move(V));
  }

  void record(const Description &D, const OperatorHandle &Op,
              c10::DispatchKeySet Keys, c10::Stack &Stack) {
    const size_t First = Stack.size() - Count;
    std::shared_ptr<const Tape> Made;
    {
      Recording R(D);
      Below.callBoxed(Op, Keys, &Stack);
      Made = R.finish(c10::ArrayRef<IValue>(Stack).slice(First));
      if (!R.Why.empty())
        note(c10::toString(B.Op.operator_name()) + ": " + R.Why);
    }
    std::unordered_map<std::vector<uint64_t>, Entry, Hash> Old; // freed at last
    std::lock_guard<std::mutex> Guard(Mutex);
    if (Entries.size() >= Most)
      Old.swap(Entries);
    Entry &E = Entries[{D.Of.begin(), D.Of.end()}];
    if (!Made || (E.Recorded && !(*E.Recorded == *Made)))
      ++E.Refusals;
    else if (E.Recorded)
      E.IsTrusted = true;
    if (Made && !E.IsTrusted)
      E.Recorded = std::move(Made);
  }

  const Board &B;
  KernelFunction Below;
  size_t Count;
  std::mutex Mutex; // held for a look at the entries
  std::unordered_map<std::vector<uint64_t>, Entry, Hash> Entries;
};

} // namespace tape
} // namespace

//===----------------------------------------------------------------------===//
// What tape.py calls
//===----------------------------------------------------------------------===//

extern "C" {

/// The target of a board that records the one in Python.
EXPORT void *udftape_target(void *On, const void *InPython) {
  auto &B = *static_cast<Board *>(On);
  auto Made = std::make_unique<Target>(B);
  Made->Kernel =
      KernelFunction::makeFromBoxedFunctor(std::make_unique<tape::Kernel>(
          B, static_cast<const Target *>(InPython)->Kernel));
  return Made.release();
}

/// Whether what this thread does now is a step that is recorded.
EXPORT int udftape_records() { return tape::Recording::current() != nullptr; }

/// Leaves calls of the kind that is recorded to Python.
EXPORT void udftape_refuse(const char *Why) {
  if (auto *R = tape::Recording::current())
    R->refuse(Why);
}

/// Sets whether this thread neither records nor plays; returns whether it did
/// not before.
EXPORT int udftape_pause(int Paused) {
  return std::exchange(tape::IsPaused, Paused != 0);
}

/// Counts who watches what kernels in Python do: nothing is played meanwhile.
EXPORT void udftape_watch(int More) { tape::Watchers += More; }

/// Begins to record a call of the stock kernel of a board, with a tuple and a
/// dictionary of arguments. Returns whether udftape_stock_ends must follow.
EXPORT int udftape_stock_begins(const void *On, PyObject *Given,
                                PyObject *Named) {
  auto *R = tape::Recording::current();
  if (!R)
    return 0;
  const auto &B = *static_cast<const Board *>(On);
  const auto Positional = static_cast<size_t>(PyTuple_GET_SIZE(Given));
  std::vector<c10::IValue> Values;
  try {
    for (const auto &A : B.Op.schema().arguments()) {
      PyObject *Value =
          Values.size() < Positional
              ? PyTuple_GET_ITEM(Given, static_cast<Py_ssize_t>(Values.size()))
              : PyDict_GetItemString(Named, A.name().c_str());
      if (Value)
        Values.push_back(
            torch::jit::toIValue(Value, A.real_type(), std::nullopt));
      else if (A.default_value())
        Values.push_back(*A.default_value());
      else
        break; // the kernel has the words for that
    }
  } catch (const std::exception &) {
    Values.clear();
  }
  R->beginStock(B, Values);
  return 1;
}

/// Ends that, with a tuple of results.
EXPORT void udftape_stock_ends(const void *On, PyObject *Results) {
  const auto &Returns = static_cast<const Board *>(On)->Op.schema().returns();
  std::vector<c10::IValue> Values;
  try {
    for (Py_ssize_t I = 0; I < PyTuple_GET_SIZE(Results); ++I)
      Values.push_back(torch::jit::toIValue(
          PyTuple_GET_ITEM(Results, I),
          Returns.at(static_cast<size_t>(I)).real_type(), std::nullopt));
  } catch (const std::exception &) {
    Values.clear();
  }
  tape::Recording::aside(-1);
  if (auto *R = tape::Recording::current())
    R->endStock(Values);
}

/// Draws a number from torch's generator, and records that. \p Which is set to
/// the how manieth it is, or to -1 if nothing is recorded.
EXPORT uint64_t udftape_draw(int *Which) {
  auto *R = tape::Recording::current();
  uint64_t Number = 0;
  *Which = -1;
  if (R)
    *Which = static_cast<int>(R->draw(Number));
  else
    Number = tape::Recording::drawn();
  return Number;
}

/// What this thread does is no step, from a call with 1 to one with -1.
EXPORT void udftape_aside(int More) { tape::Recording::aside(More); }

/// Tells that a tensor is the same at each call.
EXPORT void udftape_constant(PyObject *X) {
  if (auto *R = tape::Recording::current())
    R->constant(torch::jit::toIValue(X, c10::TensorType::get(), std::nullopt)
                    .toTensor());
}

/// Records the launch of a kernel. \p Arguments is a list of its parameters: an
/// int of 64 bits, a tensor for its address, the how manieth drawn number in a
/// tuple, or a list for a map of a matrix of bytes: the tensor, rows, columns,
/// bytes from row to row, rows and columns of a tile, and the swizzle.
EXPORT void udftape_launch(PyObject *Arguments, void *Function,
                           unsigned Threads, unsigned Shared, unsigned Programs,
                           const char *Name) {
  auto *R = tape::Recording::current();
  if (!R)
    return;
  tape::Launch New{Function, Threads, Shared, Programs, {}, {}, {}, nullptr};
  const auto Count = static_cast<size_t>(PyList_GET_SIZE(Arguments));
  if (Count > cuda::MostParameters)
    R->refuse("a kernel with too many parameters");
  const auto AddressOf = [&](PyObject *Of) {
    const Tensor X =
        torch::jit::toIValue(Of, c10::TensorType::get(), std::nullopt)
            .toTensor();
    const bool Same = R->isConstant(X);
    const int At = Same ? -1 : R->slot(X);
    if (!Same && At < 0)
      R->refuse("a launch with a tensor that no step made");
    New.At.push_back(At);
    New.Words.push_back(Same ? reinterpret_cast<uint64_t>(X.const_data_ptr())
                             : 0);
  };
  for (size_t I = 0; I < Count; ++I) {
    PyObject *Each = PyList_GET_ITEM(Arguments, static_cast<Py_ssize_t>(I));
    if (PyLong_Check(Each)) {
      New.Words.push_back(PyLong_AsUnsignedLongLongMask(Each));
      New.At.push_back(-1);
    } else if (PyTuple_Check(Each)) {
      New.Words.push_back(0);
      New.At.push_back(
          -2 - static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(Each, 0))));
    } else if (PyList_Check(Each)) {
      uint64_t N[6] = {};
      for (Py_ssize_t A = 0; A < 6; ++A)
        N[A] = PyLong_AsUnsignedLongLongMask(PyList_GET_ITEM(Each, A + 1));
      const auto Narrow = [](uint64_t X) { return static_cast<uint32_t>(X); };
      New.Maps.push_back({static_cast<unsigned>(I),
                          N[0],
                          N[1],
                          N[2],
                          {Narrow(N[4]), Narrow(N[3])},
                          static_cast<int>(N[5])});
      AddressOf(PyList_GET_ITEM(Each, 0));
      if (New.Maps.size() > tape::MostMaps || !cuda::driver() ||
          !cuda::driver()->Encode)
        R->refuse("a launch with maps of tensors that the driver has not");
    } else {
      AddressOf(Each);
    }
  }
  {
    std::lock_guard<std::mutex> Guard(Lock);
    New.Ran = &cuda::Ran[Name];
  }
  R->launch(std::move(New));
}

/// Forgets all tapes: kernels may do something else from now on.
EXPORT void udftape_forget() { ++tape::Generation; }

/// Calls that were played so far.
EXPORT uint64_t udftape_played() { return tape::Played; }

/// Writes why calls were not recorded, a line for each reason with how often;
/// returns the length.
EXPORT size_t udftape_refusals(char *Text, size_t Size) {
  std::string All;
  {
    std::lock_guard<std::mutex> Guard(Lock);
    for (const auto &[Why, Times] : tape::refusals())
      All += Why + ": " + std::to_string(Times) + "\n";
  }
  if (All.size() <= Size)
    std::memcpy(Text, All.data(), All.size());
  return All.size();
}
}

#endif
