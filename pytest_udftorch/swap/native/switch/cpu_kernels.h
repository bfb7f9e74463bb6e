//===- cpu_kernels.h - Loops of eager CPU operators, run without Python ---===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Kernels of targets above kernels in Python. The first call of a kind goes to
// Python, which compiles the loops of native/operator/cpu_loops.h, runs one,
// and tells which (udfcpu_publish). Calls of that kind run it from here
// afterwards. All else goes to the kernel in Python: tensors with gaps,
// broadcasting, errors. A call in a dtype that the session does not compute
// goes to the stock kernel.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CPU_KERNELS_H
#define UDFTORCH_CPU_KERNELS_H

#include "overload.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>

namespace {
namespace cpu {

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

/// `struct threads` of cpu_loops.h.
struct Threads {
  const void *Parallel;
  int64_t Count;
  const char *Name;
  const void *Within;
};

/// What a loop is; direct.py has the same numbers.
enum Shape : int32_t { Mapped, Whole, Variates };

using MappedLoop = void(int64_t, const void *, const void *, void *, int32_t,
                        float, float, float, const void *, const void *);
using WholeLoop = void(int64_t, const void *, void *, int32_t, const void *,
                       const void *, const void *Amended);
using VariatesLoop = void(float *, int64_t, float, float, const void *,
                          const void *);

} // namespace cpu
} // namespace

/// How to run a loop: `Loop` of direct.py, field for field. What it points to
/// lives as long as the process.
struct udfcpu_loop {
  void *Code;
  const void *Functions; ///< addresses of their array forms
  const void *Amended;   ///< or null; only for Whole
  const char *Names;     ///< of the functions, with blanks between them
  cpu::Threads Where;    ///< with a count that is not used
  float A, B, C;
  int32_t Kind;

  bool operator==(const udfcpu_loop &O) const {
    return Code == O.Code && Functions == O.Functions && Amended == O.Amended &&
           Names == O.Names && Where.Parallel == O.Where.Parallel &&
           Where.Name == O.Where.Name && Where.Within == O.Where.Within &&
           A == O.A && B == O.B && C == O.C && Kind == O.Kind;
  }
};

namespace {
namespace cpu {

/// Calls of an overload with the same key run the same loop.
struct Key {
  uint64_t Scalars[3] = {}; ///< the operator's, as the bits of doubles
  uint64_t Dtype = 0;

  bool operator==(const Key &Other) const {
    return !std::memcmp(this, &Other, sizeof *this);
  }
};

/// Never freed; those that are equal are shared, so that targets leave nothing
/// behind.
struct Entry {
  Key For;
  udfcpu_loop Loop;
  std::atomic<bool> Ran{false};
};

struct Overload : Launched<Overload, Key> {
  Overload(const Board &B, KernelFunction InPython)
      : Launched(B, std::move(InPython)),
        Power(B.Op.operator_name().name.starts_with("aten::pow")) {}

  const bool Power;                ///< some of its exponents need no function
  std::atomic<uint32_t> Dtypes{0}; ///< that the session computes, as bits
  std::atomic<Entry *> Slots[16] = {};

  Entry *find(const Key &K) const {
    for (auto &Slot : Slots) {
      Entry *E = Slot.load(std::memory_order_acquire);
      if (!E || E->For == K)
        return E;
    }
    return nullptr;
  }
};

std::vector<std::unique_ptr<Entry>> &entries() {
  static auto *All = new std::vector<std::unique_ptr<Entry>>;
  return *All;
}

/// Whether this thread's calls all go to the kernels in Python.
thread_local bool ToPython = false;

//===----------------------------------------------------------------------===//
// One call
//===----------------------------------------------------------------------===//

using Call = Arguments<Key>;
using InPython = Slow<Overload, Key>;

bool isPlain(const Tensor &X) {
  return X.is_cpu() && X.layout() == c10::kStrided && !hasNames(X) &&
         X.is_non_overlapping_and_dense();
}

bool fitWith(const Tensor &X, const Tensor &Y) {
  return areAlike(X, Y) && isPlain(Y);
}

/// Dtypes have the numbers of `enum dtype` of cpu_loops.h; others have none.
int numberOf(at::ScalarType Dtype) {
  switch (Dtype) {
  case at::kFloat:
    return 0;
  case at::kBFloat16:
    return 1;
  case at::kHalf:
    return 2;
  default:
    return -1;
  }
}

Threads threadsOf(Entry &E) {
  if (!E.Ran.load(std::memory_order_relaxed))
    E.Ran.store(true, std::memory_order_relaxed);
  Launches.fetch_add(1, std::memory_order_relaxed);
  Threads Found = E.Loop.Where;
  Found.Count = Found.Parallel ? at::get_num_threads() : 1;
  return Found;
}

void run(Entry &E, const Call &C, Tensor &Out) {
  const Threads Found = threadsOf(E);
  const udfcpu_loop &L = E.Loop;
  const void *X = C.In[0]->const_data_ptr();
  void *Y = Out.mutable_data_ptr();
  const int32_t Dtype = static_cast<int32_t>(C.K.Dtype);
  if (L.Kind == Whole)
    reinterpret_cast<WholeLoop *>(L.Code)(Out.numel(), X, Y, Dtype, L.Functions,
                                          &Found, L.Amended);
  else
    reinterpret_cast<MappedLoop *>(L.Code)(
        Out.numel(), X, C.Inputs == 2 ? C.In[1]->const_data_ptr() : nullptr, Y,
        Dtype, L.A, L.B, L.C, L.Functions, &Found);
}

//===----------------------------------------------------------------------===//
// Operators that map elements
//===----------------------------------------------------------------------===//

template <class Type, bool InPlace> struct Elements;

template <class R, class... A, bool InPlace>
struct Elements<R(A...), InPlace> final : c10::OperatorKernel {
  using Type = R(A...);
  explicit Elements(Overload &O) : O(O) {}

  R operator()(A... Arguments) {
    Call C;
    takeAll<InPlace>(C, Arguments...);
    const Tensor &X = *C.In[0];
    const int Dtype = numberOf(X.scalar_type());
    if (Dtype < 0 || !(O.Dtypes.load(std::memory_order_relaxed) >> Dtype & 1) ||
        (O.Power && C.Scalars &&
         isMultipliedOut(std::bit_cast<double>(C.K.Scalars[0]))))
      return O.stock<R, A...>(std::forward<A>(Arguments)...);
    C.K.Dtype = static_cast<uint64_t>(Dtype);
    const Key *K = nullptr;
    if (!ToPython && fits(C)) {
      if (Entry *E = O.find(C.K)) {
        if constexpr (std::is_same_v<R, Tensor &>) {
          run(*E, C, *C.Out);
          return *C.Out;
        } else {
          Tensor Y = at::detail::empty_strided_cpu(X.sizes(), X.strides(),
                                                   X.scalar_type());
          run(*E, C, Y);
          return Y;
        }
      }
      K = &C.K;
    }
    return O.below<R, A...>(K, X, std::forward<A>(Arguments)...);
  }

private:
  static bool fits(const Call &C) {
    const Tensor &X = *C.In[0];
    if (C.Odd || !isPlain(X) || !X.numel())
      return false;
    if (C.Inputs == 2 && !fitWith(X, *C.In[1]))
      return false;
    if (!C.Out || C.Out->is_same(X))
      return InPlace || !C.Out;
    return fitWith(X, *C.Out) && C.isApart(InPlace ? 1 : 0, C.Inputs);
  }
  Overload &O;
};

//===----------------------------------------------------------------------===//
// Normal variates
//===----------------------------------------------------------------------===//

/// As `variates.py`, for contiguous float32.
struct Normal final : c10::OperatorKernel {
  using Type = Tensor &(Tensor &, double, double, std::optional<at::Generator>);
  static constexpr int64_t Block = 16;
  explicit Normal(Overload &O) : O(O) {}

  Tensor &operator()(Tensor &X, double Mean, double Deviation,
                     std::optional<at::Generator> Source) {
    if (numberOf(X.scalar_type()) < 0)
      return O.stock<Tensor &, Tensor &, double, double,
                     std::optional<at::Generator>>(
          X, std::move(Mean), std::move(Deviation), std::move(Source));
    const Key *K = nullptr;
    const Key Only;
    if (!ToPython && X.scalar_type() == at::kFloat && isPlain(X) &&
        X.is_contiguous() && X.numel() >= Block && Deviation >= 0) {
      if (Entry *E = O.find(Only)) {
        const int64_t Rest = X.numel() % Block;
        X.uniform_(0, 1, Source);
        run(*E, X, X.numel() - Rest, Mean, Deviation);
        if (Rest) { // the last 16 are drawn again
          Tensor Last = X.view({-1}).slice(0, X.numel() - Block, X.numel());
          Last.uniform_(0, 1, Source);
          run(*E, Last, Block, Mean, Deviation);
        }
        return X;
      }
      K = &Only;
    }
    return O.below<Tensor &, Tensor &, double, double,
                   std::optional<at::Generator>>(
        K, X, X, std::move(Mean), std::move(Deviation), std::move(Source));
  }

private:
  static void run(Entry &E, Tensor &X, int64_t Count, double Mean,
                  double Deviation) {
    const Threads Found = threadsOf(E);
    reinterpret_cast<VariatesLoop *>(E.Loop.Code)(
        X.mutable_data_ptr<float>(), Count, static_cast<float>(Mean),
        static_cast<float>(Deviation), E.Loop.Functions, &Found);
  }
  Overload &O;
};

//===----------------------------------------------------------------------===//
// The overloads
//===----------------------------------------------------------------------===//

/// operators.h names the overloads, by the rows of swap/operators.
const std::map<std::string, void (*)(Overload &)> &makers() {
  using M = Makers<Elements>;
  static const std::map<std::string, void (*)(Overload &)> All = {
      UDFTORCH_CPU_KERNELS};
  return All;
}

} // namespace cpu
} // namespace

//===----------------------------------------------------------------------===//
// What direct.py calls
//===----------------------------------------------------------------------===//

extern "C" {

/// The target of a board whose calls are run from here, above a target in
/// Python; null if there is none. \p Dtypes has a bit for each dtype that does
/// not go to the stock kernel.
EXPORT void *udfcpu_target(void *On, void *InPython, uint32_t Dtypes) {
  auto Made = launched(*static_cast<Board *>(On),
                       *static_cast<Target *>(InPython), cpu::makers());
  if (Made)
    static_cast<cpu::Overload *>(Made->Owned.get())->Dtypes = Dtypes;
  return Made.release();
}

/// Sets whether this thread's calls all go to Python; returns the old value.
EXPORT int udfcpu_to_python(int On) {
  const int Before = cpu::ToPython;
  cpu::ToPython = On;
  return Before;
}

/// Whether this thread is in a kernel in Python that was called for a kind of
/// calls that can be run from here.
EXPORT int udfcpu_pending() {
  return !cpu::ToPython && cpu::InPython::Innermost &&
         cpu::InPython::Innermost->K;
}

/// Tells how the pending kind of calls is computed, once Python has done so.
/// \p First is the address of the first tensor that the loop read.
EXPORT void udfcpu_publish(const void *First, const udfcpu_loop *Loop) {
  using namespace cpu;
  InPython *Here = InPython::pending(First);
  if (!Here)
    return;
  const Key K = *Here->K;
  Here->K = nullptr;
  std::lock_guard<std::mutex> Guard(Lock);
  if (Here->O.find(K))
    return;
  Entry *Found = nullptr;
  for (auto &E : entries())
    if (E->For == K && E->Loop == *Loop)
      Found = E.get();
  if (!Found) {
    auto Made = std::make_unique<Entry>();
    Made->For = K;
    Made->Loop = *Loop;
    Found = entries().emplace_back(std::move(Made)).get();
  }
  for (auto &Slot : Here->O.Slots)
    if (!Slot.load()) {
      Slot.store(Found, std::memory_order_release);
      return;
    }
}

/// Calls that went past Python so far.
EXPORT uint64_t udfcpu_launches() { return Launches; }

/// Writes the names of functions that loops were run for since the last time,
/// each followed by a blank; returns the length. Forgets them if they fit.
EXPORT size_t udfcpu_ran(char *Text, size_t Size) {
  using cpu::entries;
  std::lock_guard<std::mutex> Guard(Lock);
  std::string All;
  for (auto &E : entries())
    if (E->Ran.load(std::memory_order_relaxed))
      All += std::string(E->Loop.Names) + " ";
  if (All.size() <= Size) {
    std::memcpy(Text, All.data(), All.size());
    for (auto &E : entries())
      E->Ran.store(false, std::memory_order_relaxed);
  }
  return All.size();
}
}

#endif
