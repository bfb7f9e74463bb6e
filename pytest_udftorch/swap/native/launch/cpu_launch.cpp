//===- cpu_launch.cpp - Loops of eager CPU operators, launched ------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A session registers kernels written in Python for CPU operators. For those
// listed at the end of this file, kernels of this file are registered above
// them. The first call of a kind goes to Python, which compiles the loops of
// native/operator/cpu_loops.h, runs one, and tells which (udfcpu_publish).
// Calls of that kind run it from here afterwards, without Python. All else goes
// to the kernel in Python: tensors with gaps, broadcasting, errors. A call in a
// dtype that the session does not compute goes to the stock kernel.
//
// pytest_udftorch/swap/cpu/direct.py compiles this file against the headers of
// the installed torch.
//
//===----------------------------------------------------------------------===//

#include "glibc.h"
#include "libstdcxx.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

// What headers of newer C libraries ask for, so that this library also loads
// beside older ones. The process counts as having several threads.
char __libc_single_threaded = 0;

namespace {

using at::Tensor;
using c10::KernelFunction;
using c10::OperatorHandle;

constexpr c10::DispatchKeySet Cpu(c10::DispatchKey::CPU);

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
                        float, float, float, const void *, const Threads *);
using WholeLoop = void(int64_t, const void *, void *, int32_t, const void *,
                       const Threads *, const void *Amended);
using VariatesLoop = void(float *, int64_t, float, float, const void *,
                          const Threads *);

} // namespace

/// How to run a loop: `Loop` of direct.py, field for field. What it points to
/// lives as long as the process.
struct udfcpu_loop {
  void *Code;
  const void *Functions; ///< addresses of their array forms
  const void *Amended;   ///< or null; only for Whole
  const char *Names;     ///< of the functions, with blanks between them
  Threads Where;         ///< with a count that is not used
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

/// Calls of an overload with the same key run the same loop.
struct Key {
  uint64_t Scalars[3] = {}; ///< the operator's, as the bits of doubles
  uint64_t Dtype = 0;

  bool operator==(const Key &Other) const {
    return !std::memcmp(this, &Other, sizeof *this);
  }
};

/// Never freed: another thread may be about to run one while its session
/// closes. Those that are equal are shared, so sessions leave nothing behind.
struct Entry {
  Key For;
  udfcpu_loop Loop;
  std::atomic<bool> Ran{false};
};

/// An overload. It lives as long as the process.
struct Overload {
  explicit Overload(OperatorHandle Op) : Op(std::move(Op)) {}

  OperatorHandle Op;
  KernelFunction Kernel; ///< of this file
  std::optional<c10::impl::CppSignature> Signature;
  std::optional<c10::RegistrationHandleRAII> Registration;
  KernelFunction Below; ///< the kernel in Python
  KernelFunction Stock;
  bool Power = false;              ///< some of its exponents need no function
  std::atomic<uint32_t> Dtypes{0}; ///< that the session computes, as bits
  std::atomic<uint64_t> Generation{0};
  std::atomic<Entry *> Slots[16] = {};

  Entry *find(const Key &K) const {
    for (auto &Slot : Slots) {
      Entry *E = Slot.load(std::memory_order_acquire);
      if (!E || E->For == K)
        return E;
    }
    return nullptr;
  }
  void forget() {
    Generation.fetch_add(1);
    for (auto &Slot : Slots)
      Slot.store(nullptr, std::memory_order_release);
  }
};

std::mutex Lock; // of what follows
std::vector<std::unique_ptr<Entry>> &entries() {
  static auto *All = new std::vector<std::unique_ptr<Entry>>;
  return *All;
}
std::map<std::string, std::unique_ptr<Overload>> &overloads() {
  // Never destroyed: kernels in Python must not die after the interpreter.
  static auto *All = new std::map<std::string, std::unique_ptr<Overload>>;
  return *All;
}
std::atomic<uint64_t> Launches{0};

/// Whether this thread's calls all go to the kernels in Python.
thread_local bool ToPython = false;

/// While one lives, the thread is in a kernel in Python.
struct Slow {
  Slow(Overload &O, const Key *K, const void *First)
      : O(O), K(K), First(First), Generation(O.Generation), Outer(Innermost) {
    Innermost = this;
  }
  ~Slow() { Innermost = Outer; }
  Slow(const Slow &) = delete;
  Slow &operator=(const Slow &) = delete;

  Overload &O;
  const Key *K; ///< null if calls like this are not run from here
  const void *First;
  uint64_t Generation;
  Slow *Outer;
  static inline thread_local Slow *Innermost = nullptr;
};

//===----------------------------------------------------------------------===//
// One call
//===----------------------------------------------------------------------===//

struct Call {
  const Tensor *In[2] = {};
  unsigned Inputs = 0, Scalars = 0;
  Tensor *Out = nullptr;
  Key K;
  bool Odd = false; ///< an argument that only Python knows

  void scalar(double Value) {
    if (Scalars == std::size(K.Scalars))
      Odd = true;
    else
      K.Scalars[Scalars++] = std::bit_cast<uint64_t>(Value);
  }
  void take(const Tensor &T) { In[Inputs++] = &T; }
  void take(Tensor &T) { Out = &T; }
  void take(const c10::Scalar &S) {
    if (S.isFloatingPoint() || S.isIntegral(/*includeBool=*/true))
      S.isSymbolic() ? void(Odd = true) : scalar(S.toDouble());
    else
      Odd = true;
  }
  void take(c10::string_view Text) {
    if (Text == "none" || Text == "tanh")
      scalar(Text == "tanh");
    else
      Odd = true;
  }
};

/// Whether dimensions have names; later versions of torch have none.
template <class Impl> bool isNamed(const Impl &X) {
  if constexpr (requires { X.has_named_tensor_meta(); })
    return X.has_named_tensor_meta();
  else
    return false;
}

bool isPlain(const Tensor &X) {
  return X.is_cpu() && X.layout() == c10::kStrided &&
         !isNamed(*X.unsafeGetTensorImpl()) && X.is_non_overlapping_and_dense();
}

bool areAlike(const Tensor &X, const Tensor &Y) {
  return X.scalar_type() == Y.scalar_type() && X.device() == Y.device() &&
         X.sizes() == Y.sizes() && X.strides() == Y.strides() && isPlain(Y);
}

bool mayShare(const Tensor &X, const Tensor &Y) {
  return X.storage().data() == Y.storage().data();
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

/// Whether ATen multiplies a power out, or takes roots; `MULTIPLIED_OUT` of
/// table.py has the same exponents.
bool isMultipliedOut(double Exponent) {
  for (double Known : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0})
    if (Exponent == Known)
      return true;
  return false;
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

/// \p K is null if such calls are not run from here.
template <class R, class... A>
R below(Overload &O, const Key *K, const Tensor &First, A &&...Arguments) {
  Slow Here(O, K, K ? First.const_data_ptr() : nullptr);
  const KernelFunction Kept = O.Below; // a session may close meanwhile
  return Kept.call<R, A...>(O.Op, Cpu, std::forward<A>(Arguments)...);
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
    if constexpr (InPlace)
      C.take(static_cast<const Tensor &>(first(Arguments...)));
    (C.take(Arguments), ...);
    const Tensor &X = *C.In[0];
    const int Dtype = numberOf(X.scalar_type());
    if (Dtype < 0 || !(O.Dtypes.load(std::memory_order_relaxed) >> Dtype & 1) ||
        (O.Power && C.Scalars &&
         isMultipliedOut(std::bit_cast<double>(C.K.Scalars[0])))) {
      const KernelFunction Kept = O.Stock;
      return Kept.call<R, A...>(O.Op, Cpu, std::forward<A>(Arguments)...);
    }
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
    return below<R, A...>(O, K, X, std::forward<A>(Arguments)...);
  }

private:
  template <class First, class... Rest>
  static First &first(First &Found, Rest &...) {
    return Found;
  }
  static bool fits(const Call &C) {
    const Tensor &X = *C.In[0];
    if (C.Odd || !isPlain(X) || !X.numel())
      return false;
    if (C.Inputs == 2 && !areAlike(X, *C.In[1]))
      return false;
    if (!C.Out || C.Out->is_same(X))
      return InPlace || !C.Out;
    if (!areAlike(X, *C.Out))
      return false;
    for (unsigned I = InPlace ? 1 : 0; I < C.Inputs; ++I)
      if (mayShare(*C.In[I], *C.Out))
        return false;
    return true;
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
    if (numberOf(X.scalar_type()) < 0) {
      const KernelFunction Kept = O.Stock;
      return Kept.call<Tensor &, Tensor &, double, double,
                       std::optional<at::Generator>>(
          O.Op, Cpu, X, std::move(Mean), std::move(Deviation),
          std::move(Source));
    }
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
    return below<Tensor &, Tensor &, double, double,
                 std::optional<at::Generator>>(
        O, K, X, X, std::move(Mean), std::move(Deviation), std::move(Source));
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

template <class Kernel> void make(Overload &O) {
  O.Kernel = KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(O));
  O.Signature = c10::impl::CppSignature::make<typename Kernel::Type>();
}

using Make = void (*)(Overload &);
using S = const c10::Scalar &;
using T = const Tensor &;
using Text = c10::string_view;

template <class... A> constexpr Make functional() {
  return make<Elements<Tensor(A...), false>>;
}
template <class... A> constexpr Make into() {
  return make<Elements<Tensor &(A..., Tensor &), false>>;
}
template <class... A> constexpr Make inPlace() {
  return make<Elements<Tensor &(Tensor &, A...), true>>;
}

const std::map<std::string, Make> &makers() {
  static const std::map<std::string, Make> All = [] {
    std::map<std::string, Make> M = {
        {"elu", functional<T, S, S, S>()},
        {"elu.out", into<T, S, S, S>()},
        {"elu_", inPlace<S, S, S>()},
        {"gelu", functional<T, Text>()},
        {"gelu.out", into<T, Text>()},
        {"gelu_", inPlace<Text>()},
        {"gelu_backward", functional<T, T, Text>()},
        {"gelu_backward.grad_input", into<T, T, Text>()},
        {"softplus", functional<T, S, S>()},
        {"softplus.out", into<T, S, S>()},
        {"normal_", make<Normal>},
        {"pow.Tensor_Scalar", functional<T, S>()},
        {"pow.Tensor_Scalar_out", into<T, S>()},
        {"pow_.Scalar", inPlace<S>()},
    };
    for (std::string Name : {"exp",    "exp2",
                             "expm1",  "log",
                             "log2",   "log10",
                             "log1p",  "sin",
                             "cos",    "tan",
                             "sinh",   "cosh",
                             "tanh",   "asin",
                             "acos",   "atan",
                             "asinh",  "acosh",
                             "atanh",  "erf",
                             "erfc",   "silu",
                             "mish",   "sigmoid",
                             "rsqrt",  "special_log_ndtr",
                             "lgamma", "erfinv"}) {
      M[Name] = functional<T>();
      M[Name + ".out"] = into<T>();
      M[Name + "_"] = inPlace<>();
    }
    return M;
  }();
  return All;
}

OperatorHandle handleOf(const std::string &Name) {
  const size_t Dot = Name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + Name.substr(0, Dot)).c_str(),
      Dot == std::string::npos ? "" : Name.substr(Dot + 1).c_str());
}

/// Calls a kernel boxed, the only way to it that torch 2.11 offers.
template <class Safe> struct Boxed : c10::OperatorKernel {
  explicit Boxed(Safe Inner) : Inner(std::move(Inner)) {}
  void operator()(const OperatorHandle &Op, c10::DispatchKeySet Keys,
                  c10::Stack *Stack) {
    Inner.callBoxed(Op, Keys, Stack);
  }
  Safe Inner;
};

template <class Safe> KernelFunction kernelIn(Safe Inner) {
  if constexpr (requires { Inner.kernelFunction(); })
    return Inner.kernelFunction();
  else
    return KernelFunction::makeFromBoxedFunctor(
        std::make_unique<Boxed<Safe>>(std::move(Inner)));
}

/// The kernel that an overload has now.
KernelFunction kernelOf(const OperatorHandle &Op) {
  return kernelIn(Op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
}

Overload &overloadOf(const std::string &Name) {
  auto &All = overloads();
  auto Found = All.find(Name);
  if (Found == All.end()) {
    auto Made = std::make_unique<Overload>(handleOf(Name));
    makers().at(Name)(*Made);
    Made->Power = Name.starts_with("pow");
    Found = All.emplace(Name, std::move(Made)).first;
  }
  return *Found->second;
}

template <class Body>
int guarded(char *Message, size_t Size, const Body &Do) noexcept {
  try {
    std::lock_guard<std::mutex> Guard(Lock);
    Do();
    return 0;
  } catch (const c10::Error &E) {
    std::strncpy(Message, E.what_without_backtrace(), Size - 1);
  } catch (const std::exception &E) {
    std::strncpy(Message, E.what(), Size - 1);
  } catch (...) {
    std::strncpy(Message, "unknown error", Size - 1);
  }
  return -1;
}

} // namespace

//===----------------------------------------------------------------------===//
// What direct.py calls
//===----------------------------------------------------------------------===//

extern "C" {

/// Whether there are kernels for an overload here.
EXPORT int udfcpu_knows(const char *Name) { return makers().count(Name); }

/// Notes the kernel that an overload has now as the stock kernel.
EXPORT int udfcpu_look(const char *Name, char *Message, size_t Size) {
  return guarded(Message, Size, [&] {
    Overload &O = overloadOf(Name);
    O.Stock = kernelOf(O.Op);
  });
}

/// Registers the kernel of an overload above the one that is there. \p Dtypes
/// has a bit for each dtype that does not go to the stock kernel.
EXPORT int udfcpu_register(const char *Name, uint32_t Dtypes, char *Message,
                           size_t Size) {
  return guarded(Message, Size, [&] {
    Overload &O = overloadOf(Name);
    O.forget();
    O.Dtypes = Dtypes;
    O.Below = kernelOf(O.Op);
    O.Registration.emplace(c10::Dispatcher::singleton().registerImpl(
        O.Op.operator_name(), c10::DispatchKey::CPU, O.Kernel, O.Signature,
        nullptr, "registered by a session of pytest_udftorch, run in C++"));
  });
}

/// Removes all that are registered.
EXPORT int udfcpu_unregister(char *Message, size_t Size) {
  return guarded(Message, Size, [] {
    for (auto &[Name, O] : overloads())
      if (O->Registration) {
        O->Registration.reset();
        O->forget();
        O->Below = O->Stock = KernelFunction();
      }
  });
}

/// Sets whether this thread's calls all go to Python; returns the old value.
EXPORT int udfcpu_to_python(int On) {
  const int Before = ToPython;
  ToPython = On;
  return Before;
}

/// Whether this thread is in a kernel in Python that was called for a kind of
/// calls that can be run from here.
EXPORT int udfcpu_pending() {
  return !ToPython && Slow::Innermost && Slow::Innermost->K;
}

/// Tells how the pending kind of calls is computed, once Python has done so.
/// \p First is the address of the first tensor that the loop read.
EXPORT void udfcpu_publish(const void *First, const udfcpu_loop *Loop) {
  Slow *Here = Slow::Innermost;
  if (!Here || !Here->K || Here->First != First)
    return;
  const Key K = *Here->K;
  Here->K = nullptr;
  std::lock_guard<std::mutex> Guard(Lock);
  if (Here->Generation != Here->O.Generation.load() || Here->O.find(K))
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
