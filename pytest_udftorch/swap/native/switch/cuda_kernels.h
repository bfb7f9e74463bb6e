//===- cuda_kernels.h - Eager CUDA kernels of a session, launched ---------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Kernels of targets above kernels in Python. They do not compile anything: the
// first call of a kind goes to Python, which compiles and launches, and then
// tells how (udfcuda_publish). Calls of that kind are launched from here
// afterwards. All else goes to the kernel in Python: tensors with gaps,
// broadcasting, other dtypes, errors.
//
// A *kind* of calls shares a compiled kernel: see Key, and the keys of
// launcher.py and softmax.py, which must tell no more calls apart.
//
// No CUDA toolkit is needed: the driver, and two functions of torch's CUDA
// libraries, are found by name in the running process.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CUDA_KERNELS_H
#define UDFTORCH_CUDA_KERNELS_H

#include "kernel_of.h"
#include "overload.h"
#include "udfprof.h"

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cmath>
#include <dlfcn.h>
#include <tuple>

UDFTORCH_OLD(dlopen);
UDFTORCH_OLD(dlsym);

namespace {
namespace cuda {

//===----------------------------------------------------------------------===//
// The driver, and torch's CUDA libraries
//===----------------------------------------------------------------------===//

struct Driver {
  using Result = int;
  Result (*Launch)(void *Function, unsigned, unsigned, unsigned, unsigned,
                   unsigned, unsigned, unsigned Shared, void *Stream,
                   void **Parameters, void **Extra) = nullptr;
  Result (*ErrorText)(Result, const char **) = nullptr;
  Result (*Context)(void **) = nullptr;
  Result (*SetContext)(void *) = nullptr;
  Result (*Retain)(void **, int Device) = nullptr;
  // Null in a driver that knows no tensor maps. Enumerations are ints.
  Result (*Encode)(void *Map, int Dtype, uint32_t Rank, void *Address,
                   const uint64_t *Sizes, const uint64_t *Strides,
                   const uint32_t *Box, const uint32_t *Steps, int Interleave,
                   int Swizzle, int Promotion, int Outside) = nullptr;
  // c10::cuda::CUDAStream has one member, a c10::Stream.
  void *(*NativeStream)(const c10::Stream *) = nullptr;
  at::TensorBase (*Empty)(c10::IntArrayRef, c10::IntArrayRef, c10::ScalarType,
                          std::optional<c10::Device>) = nullptr;
};

template <class F> bool look(void *Library, const char *Name, F &Found) {
  Found = Library ? reinterpret_cast<F>(dlsym(Library, Name)) : nullptr;
  return Found;
}

/// A library that the process has already loaded, or null.
void *loaded(const char *Name) { return dlopen(Name, RTLD_LAZY | RTLD_NOLOAD); }

const Driver *driver() {
  static Driver D;
  static const bool Found = [] {
    void *Cuda = dlopen("libcuda.so.1", RTLD_LAZY);
    void *C10 = loaded("libc10_cuda.so");
    look(loaded("libtorch_cuda.so"),
         "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_"
         "NS1_10ScalarTypeESt8optionalINS1_6DeviceEE",
         D.Empty);
    look(Cuda, "cuTensorMapEncodeTiled", D.Encode);
    return look(Cuda, "cuLaunchKernel", D.Launch) &&
           look(Cuda, "cuGetErrorString", D.ErrorText) &&
           look(Cuda, "cuCtxGetCurrent", D.Context) &&
           look(Cuda, "cuCtxSetCurrent", D.SetContext) &&
           look(Cuda, "cuDevicePrimaryCtxRetain", D.Retain) &&
           look(C10, "_ZNK3c104cuda10CUDAStream6streamEv", D.NativeStream);
  }();
  return Found ? &D : nullptr;
}

void check(const Driver &D, Driver::Result Error, const char *What) {
  if (__builtin_expect(Error, 0)) {
    const char *Text = nullptr;
    D.ErrorText(Error, &Text);
    TORCH_CHECK(false, "A kernel of the session cannot be launched: ", What,
                " failed: ", Text ? Text : "unknown error", " (CUDA driver, ",
                Error, "). An earlier kernel may have failed; ",
                "CUDA_LAUNCH_BLOCKING=1 shows which.");
  }
}

//===----------------------------------------------------------------------===//
// Kinds of calls
//===----------------------------------------------------------------------===//

/// Calls with the same key share a compiled kernel. Compared bit by bit.
struct Key {
  uint64_t Scalars[3] = {}; ///< the operator's, as the bits of doubles
  uint64_t Place = ~0ull;   ///< of udfprof, in a profiled session
  uint64_t Length = 0;      ///< of rows, or its class
  uint64_t Inner = 0;       ///< elements between those of a row
  uint8_t Dtype = 0, Device = 0;
  uint8_t Unaligned = 0; ///< a bit for each tensor
  uint8_t Size = 0;      ///< its class
  uint32_t Unused = 0;   ///< no gap is compared

  bool operator==(const Key &Other) const {
    return !std::memcmp(this, &Other, sizeof *this);
  }
  uint64_t hash() const {
    uint64_t Words[sizeof(Key) / 8], H = 0;
    static_assert(sizeof Words == sizeof(Key));
    std::memcpy(Words, this, sizeof Words);
    for (uint64_t W : Words)
      H = (H ^ W) * 0x9E3779B97F4A7C15ull, H ^= H >> 29;
    return H;
  }
};

/// Where a parameter of a kernel comes from; direct.py has the same numbers.
enum Source : uint8_t { Constant, OfTensor, Count, RowLength, Number, Blocks };

constexpr unsigned MostParameters = 64, MostNumbers = 28;

/// How to launch the kernel of a kind.
struct Entry {
  Key For;
  Entry *Next = nullptr;
  void *Function = nullptr;
  unsigned Threads = 0, Shared = 0, Parameters = 0;
  uint64_t Divisor = 1,
           Factor = 1; ///< programs: ceil(count / divisor) * factor
  Source Sources[MostParameters] = {};
  uint64_t Values[MostParameters] = {}; ///< constants, and indices of tensors
  std::atomic<bool> *Ran = nullptr;
};

struct Overload : Launched<Overload, Key> {
  static constexpr unsigned Buckets = 64, Most = 4096;
  using Launched::Launched;
  ~Overload() {
    for (auto &Head : Table)
      for (Entry *E = Head.load(); E;)
        delete std::exchange(E, E->Next);
  }

  std::atomic<unsigned> Entries{0};
  std::atomic<Entry *> Table[Buckets] = {};

  const Entry *find(const Key &K) const {
    Entry *E = Table[K.hash() % Buckets].load(std::memory_order_acquire);
    while (E && !(E->For == K))
      E = E->Next;
    return E;
  }
  void add(std::unique_ptr<Entry> New) {
    if (Entries.fetch_add(1) >= Most)
      return;
    auto &Head = Table[New->For.hash() % Buckets];
    New->Next = Head.load(std::memory_order_relaxed);
    while (!Head.compare_exchange_weak(New->Next, New.get(),
                                       std::memory_order_release))
      ;
    New.release();
  }
};

std::atomic<bool> IsCounting{false};
uint64_t FewElements = 0, LongestInRegisters = 0;

std::map<std::string, std::atomic<bool>> Ran; // kernels launched from here

//===----------------------------------------------------------------------===//
// One call
//===----------------------------------------------------------------------===//

struct Call : Arguments<Key> {
  uint64_t Elements = 0; ///< or rows
  uint64_t Length = 0;
  uint64_t Times = 1;            ///< so many times the programs of the elements
  uint64_t Numbers[MostNumbers]; ///< of attention

  using Arguments::take;
  // elu_backward's, beside three numbers.
  void take(bool Flag) { K.Length = Flag; }
};
using InPython = Slow<Overload, Key>;

bool isHandled(at::ScalarType Dtype) {
  return Dtype == at::kFloat || Dtype == at::kBFloat16 || Dtype == at::kHalf;
}

bool isPlain(const Tensor &X) {
  return X.is_cuda() && isHandled(X.scalar_type()) && !hasNames(X);
}

Tensor allocate(const Driver &D, const Tensor &Like) {
  if (D.Empty)
    return Tensor(D.Empty(Like.sizes(), Like.strides(), Like.scalar_type(),
                          Like.device()));
  return at::empty_strided(Like.sizes(), Like.strides(), Like.options());
}

/// Launches on the current stream of a GPU. \p Parameters has room for two
/// more.
void launch(const Driver &D, void *Function, unsigned Programs,
            unsigned Threads, unsigned Shared, c10::DeviceIndex Device,
            void **Parameters, unsigned Count) {
  // Triton's kernels end with two pointers that these do not use.
  uint64_t None = 0;
  Parameters[Count] = Parameters[Count + 1] = &None;
  void *Context = nullptr;
  check(D, D.Context(&Context), "cuCtxGetCurrent");
  if (!Context) { // this thread has not called CUDA yet
    check(D, D.Retain(&Context, Device), "cuDevicePrimaryCtxRetain");
    check(D, D.SetContext(Context), "cuCtxSetCurrent");
  }
  static const c10::impl::DeviceGuardImplInterface *Guard =
      c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  const c10::Stream Stream =
      Guard->getStream(c10::Device(c10::DeviceType::CUDA, Device));
  check(D,
        D.Launch(Function, Programs, 1, 1, Threads, 1, 1, Shared,
                 D.NativeStream(&Stream), Parameters, nullptr),
        "cuLaunchKernel");
  Launches.fetch_add(1, std::memory_order_relaxed);
}

void launch(const Driver &D, const Entry &E, const Call &C,
            void *const *Pointers) {
  uint64_t Values[MostParameters];
  void *Parameters[MostParameters + 2];
  for (unsigned I = 0; I < E.Parameters; ++I) {
    switch (E.Sources[I]) {
    case Constant:
      Values[I] = E.Values[I];
      break;
    case OfTensor:
      Values[I] = reinterpret_cast<uint64_t>(Pointers[E.Values[I]]);
      break;
    case Count:
      Values[I] = C.Elements;
      break;
    case RowLength:
      Values[I] = C.Length;
      break;
    case Number:
      Values[I] = C.Numbers[E.Values[I]];
      break;
    case Blocks:
      Values[I] = (C.Elements + E.Divisor - 1) / E.Divisor;
    }
    // A parameter of 32 bits is the lower half.
    Parameters[I] = &Values[I];
  }
  const auto Programs = static_cast<unsigned>((C.Elements + E.Divisor - 1) /
                                              E.Divisor * E.Factor * C.Times);
  launch(D, E.Function, Programs, E.Threads, E.Shared,
         static_cast<c10::DeviceIndex>(C.K.Device), Parameters, E.Parameters);
  if (!E.Ran->load(std::memory_order_relaxed))
    E.Ran->store(true, std::memory_order_relaxed);
}

/// Launches, if a kernel for calls of this kind is known. C's key is finished.
/// \p Inputs is how many tensors the kernel reads; they come first in C.In.
bool run(Overload &O, const Driver &D, Call &C, unsigned Inputs, Tensor &Out) {
  void *Pointers[4];
  for (unsigned I = 0; I < Inputs; ++I)
    Pointers[I] = const_cast<void *>(C.In[I]->const_data_ptr());
  Pointers[Inputs] = Out.mutable_data_ptr();
  for (unsigned I = 0; I <= Inputs; ++I)
    if (reinterpret_cast<uintptr_t>(Pointers[I]) & 15)
      C.K.Unaligned |= 1 << I;
  const Tensor &X = *C.In[0];
  C.K.Dtype = static_cast<uint8_t>(X.scalar_type());
  C.K.Device = static_cast<uint8_t>(X.get_device());
  if (IsCounting.load(std::memory_order_relaxed))
    C.K.Place = udfprof_place();
  const Entry *E = O.find(C.K);
  if (!E)
    return false;
  launch(D, *E, C, Pointers);
  return true;
}

//===----------------------------------------------------------------------===//
// Operators that map elements
//===----------------------------------------------------------------------===//

/// Whether a call fits; then its key has the class of the size. As alike() of
/// launcher.py, and its callers.
bool fitsElements(Call &C, unsigned Inputs, const Tensor *Out) {
  const Tensor &X = *C.In[0];
  if (C.Odd || !isPlain(X) || !X.is_non_overlapping_and_dense())
    return false;
  for (unsigned I = 1; I < Inputs; ++I)
    if (!areAlike(X, *C.In[I]))
      return false;
  C.Elements = static_cast<uint64_t>(X.numel());
  if (!C.Elements)
    return false;
  C.K.Size = C.Elements < FewElements ? 0 : C.Elements < 1ull << 31 ? 1 : 2;
  if (Out && !Out->is_same(X) && !areAlike(X, *Out))
    return false;
  return true;
}

template <class Type, bool InPlace> struct Elements;

/// Inputs beyond the second are buffers that the kernels do not read.
template <class R, class... A, bool InPlace>
struct Elements<R(A...), InPlace> final : c10::OperatorKernel {
  using Type = R(A...);
  explicit Elements(Overload &O) : O(O) {}

  R operator()(A... Arguments) {
    Call C;
    const Key *K = nullptr;
    const Driver *D = driver();
    takeAll<InPlace>(C, Arguments...);
    const unsigned Inputs = C.Inputs < 2 ? C.Inputs : 2;
    if constexpr (std::is_same_v<R, Tensor &>) {
      if (D && fitsElements(C, Inputs, C.Out) &&
          C.isApart(InPlace ? 1 : 0, Inputs)) {
        c10::DeviceGuard There(C.In[0]->device());
        if (run(O, *D, C, Inputs, *C.Out))
          return *C.Out;
        K = &C.K;
      }
    } else if (D && fitsElements(C, Inputs, nullptr)) {
      c10::DeviceGuard There(C.In[0]->device());
      Tensor Result = allocate(*D, *C.In[0]);
      if (run(O, *D, C, Inputs, Result)) {
        if constexpr (std::is_same_v<R, Tensor>)
          return Result;
        else // log_sigmoid_forward, whose buffer is empty on CUDA
          return {Result, at::empty_strided({0}, {1}, Result.options())};
      }
      K = &C.K;
    }
    return O.below<R, A...>(K, *C.In[0], std::forward<A>(Arguments)...);
  }

private:
  Overload &O;
};

/// pow with a number. ATen computes these exponents without pow.
struct PowOfNumber final : c10::OperatorKernel {
  using Type = Tensor(const Tensor &, const c10::Scalar &);
  explicit PowOfNumber(Overload &O) : O(O) {}
  Tensor operator()(const Tensor &X, const c10::Scalar &Exponent) {
    if (!Exponent.isComplex() && !Exponent.isSymbolic() &&
        isMultipliedOut(Exponent.toDouble()))
      return O.stock<Tensor, const Tensor &, const c10::Scalar &>(X, Exponent);
    return O.below<Tensor, const Tensor &, const c10::Scalar &>(nullptr, X, X,
                                                                Exponent);
  }
  Overload &O;
};

//===----------------------------------------------------------------------===//
// Softmax and its relatives
//===----------------------------------------------------------------------===//

/// Whether a call over rows fits; then its key says which rows.
bool fitsRows(Call &C, int64_t Dim) {
  const Tensor &X = *C.In[0];
  const int64_t Dims = X.dim();
  if (!isPlain(X) || !X.is_contiguous() || Dim < -Dims || Dim >= Dims ||
      !X.numel())
    return false;
  if (Dim < 0)
    Dim += Dims;
  uint64_t Inner = 1;
  for (int64_t I = Dim + 1; I < Dims; ++I)
    Inner *= static_cast<uint64_t>(X.size(I));
  C.Length = static_cast<uint64_t>(X.size(Dim));
  C.Elements = static_cast<uint64_t>(X.numel()) / (C.Length * Inner);
  if (C.Elements >= 1ull << 31)
    return false;
  C.K.Inner = Inner;
  C.K.Length = C.Length;
  if (Inner == 1 && C.Length <= LongestInRegisters) {
    // The power of two that holds a row, and what Triton asks of its length.
    C.K.Size = C.Length == 1 ? 1 : C.Length % 16 == 0 ? 2 : 3;
    C.K.Length = std::bit_width(C.Length - 1);
  }
  return true;
}

struct Softmax final : c10::OperatorKernel {
  using Type = Tensor(const Tensor &, int64_t, bool);
  explicit Softmax(Overload &O) : O(O) {}
  Tensor operator()(const Tensor &X, int64_t Dim, bool HalfToFloat) {
    Call C;
    C.take(X);
    const Key *K = nullptr;
    const Driver *D = driver();
    if (D && !HalfToFloat && fitsRows(C, Dim)) {
      c10::DeviceGuard There(X.device());
      Tensor Result = allocate(*D, X);
      if (run(O, *D, C, 1, Result))
        return Result;
      K = &C.K;
    }
    return O.below<Tensor, const Tensor &, int64_t, bool>(
        K, X, X, std::move(Dim), std::move(HalfToFloat));
  }
  Overload &O;
};

struct LogSoftmaxBackward final : c10::OperatorKernel {
  using Type = Tensor(const Tensor &, const Tensor &, int64_t, at::ScalarType);
  explicit LogSoftmaxBackward(Overload &O) : O(O) {}
  Tensor operator()(const Tensor &Grad, const Tensor &Output, int64_t Dim,
                    at::ScalarType InputDtype) {
    Call C;
    C.take(Grad), C.take(Output);
    const Key *K = nullptr;
    const Driver *D = driver();
    if (D && InputDtype == Output.scalar_type() && areAlike(Grad, Output) &&
        fitsRows(C, Dim)) {
      c10::DeviceGuard There(Grad.device());
      Tensor Result = allocate(*D, Grad);
      if (run(O, *D, C, 2, Result))
        return Result;
      K = &C.K;
    }
    return O
        .below<Tensor, const Tensor &, const Tensor &, int64_t, at::ScalarType>(
            K, Grad, Grad, Output, std::move(Dim), std::move(InputDtype));
  }
  Overload &O;
};

//===----------------------------------------------------------------------===//
// Sums with numbers in 16 bits
//===----------------------------------------------------------------------===//

/// \p Number as the dtype of \p X holds it, if X has 16 bits, is on a GPU, and
/// the sum takes its dtype: kernels for CPUs round numbers first.
std::optional<Tensor> heldNumber(const Tensor &Number, const Tensor &X) {
  const auto Type = X.scalar_type(), Kind = Number.scalar_type();
  const bool Whole = at::isIntegralType(Kind, /*includeBool=*/false);
  if ((Type != at::kBFloat16 && Type != at::kHalf) || !X.is_cuda() ||
      Number.dim() || !Number.is_cpu() ||
      !(Whole || at::isFloatingType(Kind)) ||
      !(X.dim() || Number.unsafeGetTensorImpl()->is_wrapped_number()))
    return std::nullopt;
  const auto Value = Whole ? static_cast<float>(Number.item<int64_t>())
                           : static_cast<float>(Number.item<double>());
  const float Held = Type == at::kHalf
                         ? static_cast<float>(c10::Half(Value))
                         : static_cast<float>(c10::BFloat16(Value));
  return at::native::wrapped_scalar_tensor(Held);
}

/// A sum or difference of two tensors, of which one may be a number.
template <class Type> struct SumWithNumber;
template <class R, class First, class... Rest>
struct SumWithNumber<R(First, T, Rest...)> final : c10::OperatorKernel {
  explicit SumWithNumber(Overload &O) : O(O) {}
  R operator()(First X, T Y, Rest... Others) {
    if (const auto Held = heldNumber(Y, X))
      return stock(X, *Held, Others...);
    if constexpr (std::is_same_v<First, T>)
      if (const auto Held = heldNumber(X, Y))
        return stock(*Held, Y, Others...);
    return stock(X, Y, Others...);
  }

private:
  R stock(First X, T Y, Rest... Others) {
    return O.stock<R, First, T, Rest...>(X, Y, Others...);
  }
  Overload &O;
};

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// The three forms of fused attention.
enum Form { Flash, Efficient, Cudnn };

/// Attention without a mask added, without dropout, of heads that lie in rows:
/// `_usual` of attention.py. The rest goes to Python.
struct Attention {
  const Tensor &Q, &K, &V;
  bool Causal;
  std::optional<double> Scale;

  bool fits(Form F) const {
    const int64_t Size = Q.dim() == 4 ? Q.size(3) : 0;
    const bool Wide = Q.scalar_type() == at::kFloat;
    for (const Tensor *X : {&Q, &K, &V})
      if (X->dim() != 4 || X->scalar_type() != Q.scalar_type() ||
          !X->is_cuda() || X->device() != Q.device() || hasNames(*X) ||
          !X->numel() || X->stride(3) != 1 || X->is_conj())
        return false;
    return isHandled(Q.scalar_type()) && !(Wide && F != Efficient) &&
           Q.size(0) == K.size(0) &&
           K.sizes().slice(0, 3) == V.sizes().slice(0, 3) &&
           K.size(3) == Size && V.size(3) == Size && Q.size(1) == K.size(1) &&
           Size <= (F == Cudnn ? 128 : 256) && Size % (Wide ? 4 : 8) == 0 &&
           !(Scale && !(*Scale > 0));
  }

  /// How many scores there are.
  int64_t scores(int64_t Offset) const {
    const int64_t Rows = Q.size(2), Keys = K.size(2);
    int64_t Count = Rows * Keys;
    if (Causal) { // row i sees i + 1 + Offset keys, between none and all
      const int64_t First = std::min(std::max(-Offset, int64_t(0)), Rows);
      const int64_t Full = std::min(std::max(Keys - Offset, First), Rows);
      const int64_t Rising = Full - First;
      Count =
          Rising * (2 * Offset + First + Full + 1) / 2 + (Rows - Full) * Keys;
    }
    return Count * Q.size(0) * Q.size(1);
  }

  /// Launches, if a kernel for calls of this kind is known. \p Lse may have no
  /// memory; \p Row is the distance of its rows. The names and their order are
  /// those of `_NUMBERS` in direct.py.
  bool run(Overload &O, const Driver &D, Call &C, Form F, Tensor &Out,
           const Tensor &Lse, int64_t Row) const {
    if (IsCounting.load(std::memory_order_relaxed))
      return false; // counts in rows of its own
    const int64_t Offset = F == Flash ? K.size(2) - Q.size(2) : 0;
    unsigned N = 0;
    uint64_t Kinds = 0; // what Triton compiles a kernel for in a stride
    for (const Tensor *X : {&Q, &K, &V, const_cast<const Tensor *>(&Out)})
      for (int I = 0; I < 3; ++I) {
        const int64_t S = X->stride(I);
        Kinds = Kinds << 3 | (S % 16 == 0) | (S == 1) << 1 | isWide(S) << 2;
        C.Numbers[N++] = static_cast<uint64_t>(S);
      }
    for (int I = 0; I < 4; ++I)
      C.Numbers[N++] = 0; // strides of a mask
    uint64_t Wide = 0;
    for (int64_t S :
         {Q.size(1), int64_t(1), Q.size(2), K.size(2), Row, Offset}) {
      Wide = Wide << 1 | isWide(S);
      C.Numbers[N++] = static_cast<uint64_t>(S);
    }
    const double By = Scale ? *Scale : 1 / std::sqrt(double(Q.size(3)));
    C.Numbers[N++] = std::bit_cast<uint32_t>(static_cast<float>(By));
    C.Numbers[N++] = 0; // dropout
    const int64_t Count = scores(Offset);
    C.Numbers[N++] = static_cast<uint64_t>(Count);
    C.K.Scalars[0] = Kinds;
    C.K.Scalars[1] = Wide << 1 | isWide(Count);
    C.K.Scalars[2] = Causal;
    C.K.Inner = Lse.numel() != 0;
    C.K.Length = static_cast<uint64_t>(Q.size(3));
    C.K.Dtype = static_cast<uint8_t>(Q.scalar_type());
    C.K.Device = static_cast<uint8_t>(Q.get_device());
    void *Pointers[5] = {const_cast<void *>(Q.const_data_ptr()),
                         const_cast<void *>(K.const_data_ptr()),
                         const_cast<void *>(V.const_data_ptr()),
                         Out.mutable_data_ptr(),
                         Lse.numel() ? Lse.mutable_data_ptr() : nullptr};
    for (unsigned I = 0; I < 5; ++I)
      if (reinterpret_cast<uintptr_t>(Pointers[I]) & 15)
        C.K.Unaligned |= 1 << I;
    C.Elements = static_cast<uint64_t>(Q.size(2));
    C.Times = static_cast<uint64_t>(Q.size(0) * Q.size(1));
    const Entry *E = O.find(C.K);
    if (E)
      launch(D, *E, C, Pointers);
    return E;
  }

  static bool isWide(int64_t Number) { return std::abs(Number) >= 1ll << 31; }
};

using Attended = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt,
                            c10::SymInt, Tensor, Tensor, Tensor>;

struct FlashAttention final : c10::OperatorKernel {
  using Type = Attended(const Tensor &, const Tensor &, const Tensor &, double,
                        bool, bool, std::optional<double>);
  explicit FlashAttention(Overload &O) : O(O) {}
  Attended operator()(const Tensor &Q, const Tensor &K, const Tensor &V,
                      double Dropout, bool Causal, bool Mask,
                      std::optional<double> Scale) {
    const Attention A{Q, K, V, Causal, Scale};
    const Driver *D = driver();
    Call C;
    const Key *Known = nullptr;
    if (D && Dropout == 0 && !Mask && A.fits(Flash)) {
      c10::DeviceGuard There(Q.device());
      Tensor Out = at::empty_like(Q);
      const auto Float = Q.options().dtype(at::kFloat);
      Tensor Lse = at::empty(Q.sizes().slice(0, 3), Float);
      if (A.run(O, *D, C, Flash, Out, Lse, Lse.size(2)))
        return {Out,
                Lse,
                Tensor(),
                Tensor(),
                Q.size(2),
                K.size(2),
                at::zeros({2}, Q.options().dtype(at::kUInt64)),
                at::empty({}, Q.options().dtype(at::kUInt64)),
                at::empty({0}, Q.options())};
      Known = &C.K;
    }
    return O.below<Attended, const Tensor &, const Tensor &, const Tensor &,
                   double, bool, bool, std::optional<double>>(
        Known, Q, Q, K, V, std::move(Dropout), std::move(Causal),
        std::move(Mask), std::move(Scale));
  }
  Overload &O;
};

struct CudnnAttention final : c10::OperatorKernel {
  using Type = Attended(const Tensor &, const Tensor &, const Tensor &,
                        const std::optional<Tensor> &, bool, double, bool, bool,
                        std::optional<double>);
  explicit CudnnAttention(Overload &O) : O(O) {}
  Attended operator()(const Tensor &Q, const Tensor &K, const Tensor &V,
                      const std::optional<Tensor> &Bias, bool WithLse,
                      double Dropout, bool Causal, bool Mask,
                      std::optional<double> Scale) {
    const Attention A{Q, K, V, Causal, Scale};
    const Driver *D = driver();
    Call C;
    const Key *Known = nullptr;
    if (D && Dropout == 0 && !Mask && !(Bias && Bias->defined()) &&
        A.fits(Cudnn)) {
      c10::DeviceGuard There(Q.device());
      Tensor Out = at::empty_like(Q);
      const auto Float = Q.options().dtype(at::kFloat);
      Tensor Lse = WithLse
                       ? at::empty({Q.size(0), Q.size(1), Q.size(2), 1}, Float)
                       : at::empty({0}, Float);
      if (A.run(O, *D, C, Cudnn, Out, Lse, WithLse ? Q.size(2) : 0)) {
        Tensor Seeds = at::zeros({4}, Q.options().dtype(at::kLong));
        return {Out,       Lse,       Tensor(),           Tensor(),
                Q.size(2), K.size(2), Seeds.select(0, 0), Seeds.select(0, 2),
                Tensor()};
      }
      Known = &C.K;
    }
    return O.below<Attended, const Tensor &, const Tensor &, const Tensor &,
                   const std::optional<Tensor> &, bool, double, bool, bool,
                   std::optional<double>>(
        Known, Q, Q, K, V, Bias, std::move(WithLse), std::move(Dropout),
        std::move(Causal), std::move(Mask), std::move(Scale));
  }
  Overload &O;
};

struct EfficientAttention final : c10::OperatorKernel {
  using R = std::tuple<Tensor, Tensor, Tensor, Tensor>;
  using Type = R(const Tensor &, const Tensor &, const Tensor &,
                 const std::optional<Tensor> &, bool, double, bool,
                 std::optional<double>);
  explicit EfficientAttention(Overload &O) : O(O) {}
  R operator()(const Tensor &Q, const Tensor &K, const Tensor &V,
               const std::optional<Tensor> &Bias, bool WithLse, double Dropout,
               bool Causal, std::optional<double> Scale) {
    const Attention A{Q, K, V, Causal, Scale};
    const Driver *D = driver();
    Call C;
    const Key *Known = nullptr;
    if (D && Dropout == 0 && !(Bias && Bias->defined()) && A.fits(Efficient)) {
      c10::DeviceGuard There(Q.device());
      const int64_t Rows = Q.size(2),
                    Padded = WithLse ? (Rows + 31) / 32 * 32 : 0;
      Tensor Out =
          at::empty({Q.size(0), Rows, Q.size(1), V.size(3)}, Q.options())
              .transpose(1, 2);
      Tensor Lse = at::empty({Q.size(0), Q.size(1), Padded},
                             Q.options().dtype(at::kFloat));
      if (A.run(O, *D, C, Efficient, Out, Lse, Padded)) {
        Tensor Seeds = at::zeros({4}, Q.options().dtype(at::kLong));
        return {Out, Lse, Seeds.select(0, 0), Seeds.select(0, 2)};
      }
      Known = &C.K;
    }
    return O.below<R, const Tensor &, const Tensor &, const Tensor &,
                   const std::optional<Tensor> &, bool, double, bool,
                   std::optional<double>>(
        Known, Q, Q, K, V, Bias, std::move(WithLse), std::move(Dropout),
        std::move(Causal), std::move(Scale));
  }
  Overload &O;
};

/// Attention before torch chooses a form of it. Where it fuses on a GPU what
/// it fuses on a CPU, the call is torch's; the rest goes to Python
/// (`attention_in_form` of contract/cuda_layers.py).
struct AttentionInForm final : c10::OperatorKernel {
  explicit AttentionInForm(Overload &O) : O(O) {}
  Tensor operator()(const Tensor &Q, const Tensor &K, const Tensor &V,
                    const std::optional<Tensor> &Mask, double Dropout,
                    bool Causal, std::optional<double> Scale, bool Shared) {
    const auto Choose = [&](const KernelFunction &Chosen, c10::DispatchKey By) {
      return Chosen.call<int64_t, const Tensor &, const Tensor &,
                         const Tensor &, const std::optional<Tensor> &, double,
                         bool, std::optional<double>, bool>(
          choice(), c10::DispatchKeySet(By), Q, K, V, Mask, double(Dropout),
          bool(Causal), std::optional<double>(Scale), bool(Shared));
    };
    // Without the composition there is no choice, or an error.
    if (!at::globalContext().userEnabledMathSDP() ||
        !Choose(OnGpus, c10::DispatchKey::CUDA) ==
            !Choose(OnCpus, c10::DispatchKey::CPU))
      return O.stock<Tensor, const Tensor &, const Tensor &, const Tensor &,
                     const std::optional<Tensor> &, double, bool,
                     std::optional<double>, bool>(
          Q, K, V, Mask, std::move(Dropout), std::move(Causal),
          std::move(Scale), std::move(Shared));
    return O.below<Tensor, const Tensor &, const Tensor &, const Tensor &,
                   const std::optional<Tensor> &, double, bool,
                   std::optional<double>, bool>(
        nullptr, Q, Q, K, V, Mask, std::move(Dropout), std::move(Causal),
        std::move(Scale), std::move(Shared));
  }

private:
  static const OperatorHandle &choice() {
    static const OperatorHandle Op = handleOf("aten::_fused_sdp_choice");
    return Op;
  }
  Overload &O;
  const KernelFunction OnGpus = udf::detail::kernelOf(choice(),
                                                      c10::DispatchKey::CUDA),
                       OnCpus = udf::detail::kernelOf(choice(),
                                                      c10::DispatchKey::CPU);
};

//===----------------------------------------------------------------------===//
// The overloads
//===----------------------------------------------------------------------===//

/// operators.h names the overloads, by the rows of swap/operators.
const std::map<std::string, void (*)(Overload &)> &makers() {
  using M = Makers<Elements>;
  static const std::map<std::string, void (*)(Overload &)> All = {
      UDFTORCH_CUDA_KERNELS{"scaled_dot_product_attention",
                            make<AttentionInForm>},
      {"add.Tensor", make<SumWithNumber<Tensor(T, T, S)>>},
      {"add_.Tensor", make<SumWithNumber<Tensor &(Tensor &, T, S)>>},
      {"add.out", make<SumWithNumber<Tensor &(T, T, S, Tensor &)>>},
      {"sub.Tensor", make<SumWithNumber<Tensor(T, T, S)>>},
      {"sub_.Tensor", make<SumWithNumber<Tensor &(Tensor &, T, S)>>},
      {"sub.out", make<SumWithNumber<Tensor &(T, T, S, Tensor &)>>}};
  return All;
}

} // namespace cuda
} // namespace

//===----------------------------------------------------------------------===//
// What direct.py calls
//===----------------------------------------------------------------------===//

extern "C" {

/// Sets the sizes that the kernels in Python are chosen by.
EXPORT void udfcuda_sizes(uint64_t Few, uint64_t InRegisters) {
  cuda::FewElements = Few;
  cuda::LongestInRegisters = InRegisters;
}

/// The target of a board whose calls are launched from here, above a target in
/// Python; null if there is none.
EXPORT void *udfcuda_target(void *On, void *InPython) {
  return launched(*static_cast<Board *>(On), *static_cast<Target *>(InPython),
                  cuda::makers())
      .release();
}

/// Whether this thread is in a kernel in Python that was called for a kind of
/// calls that can be launched from here.
EXPORT int udfcuda_pending() {
  return cuda::InPython::Innermost && cuda::InPython::Innermost->K;
}

/// Leaves the kind of calls that this thread is in to Python.
EXPORT void udfcuda_drop() {
  if (cuda::InPython::Innermost)
    cuda::InPython::Innermost->K = nullptr;
}

/// Tells how the pending kind of calls is launched. Returns whether it was
/// taken. \p First is the address of the first tensor that was launched with.
EXPORT int udfcuda_publish(const void *First, void *Function, unsigned Threads,
                           unsigned Shared, uint64_t Divisor, uint64_t Factor,
                           unsigned Parameters, const uint8_t *Sources,
                           const uint64_t *Values, const char *Kernel) {
  using namespace cuda;
  InPython *Here = InPython::pending(First);
  if (!Here || Parameters > MostParameters)
    return 0;
  auto E = std::make_unique<Entry>();
  E->For = *Here->K;
  E->Function = Function;
  E->Threads = Threads;
  E->Shared = Shared;
  E->Divisor = Divisor;
  E->Factor = Factor;
  E->Parameters = Parameters;
  for (unsigned I = 0; I < Parameters; ++I) {
    E->Sources[I] = static_cast<Source>(Sources[I]);
    E->Values[I] = Values[I];
  }
  std::lock_guard<std::mutex> Guard(Lock);
  E->Ran = &Ran[Kernel];
  if (!Here->O.find(E->For))
    Here->O.add(std::move(E));
  Here->K = nullptr;
  return 1;
}

/// Sets whether launches count.
EXPORT void udfcuda_counting(int On) { cuda::IsCounting = On; }

/// Launches so far.
EXPORT uint64_t udfcuda_launches() { return Launches; }

/// Writes the names of kernels launched since the last time, each followed by
/// a line feed; returns the length. Forgets them if they fit.
EXPORT size_t udfcuda_ran(char *Text, size_t Size) {
  using cuda::Ran;
  std::lock_guard<std::mutex> Guard(Lock);
  std::string All;
  for (auto &[Name, Did] : Ran)
    if (Did.load(std::memory_order_relaxed))
      All += Name + "\n";
  if (All.size() <= Size) {
    std::memcpy(Text, All.data(), All.size());
    for (auto &[Name, Did] : Ran)
      Did.store(false, std::memory_order_relaxed);
  }
  return All.size();
}
}

#endif
