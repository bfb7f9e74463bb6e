//===- udf_operator.h - UDFs at operator level, in C++ --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// A source of such UDFs includes this header if it uses udf::stock, and ATen's
// headers for what it computes with.
// pytest_udftorch/swap/overrides/operator_udfs.py adds the rest: it compiles
// the source behind this header against the installed torch and lists its
// functions with UDF_OPERATORS. Boards (native/switch) call the kernels that
// the udfoperator_* entry points make of the functions.
//
// A function whose type is that of an out= overload can stand for all three:
// the functional overload, the in-place one and out=.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_UDF_OPERATOR_H
#define UDFTORCH_UDF_OPERATOR_H

#include "kernel_of.h"
#include "udfprof.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/infer_schema.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace udf {
namespace detail {

using at::Tensor;
using c10::KernelFunction;
using c10::OperatorHandle;

/// What a registered kernel makes of the author's function.
enum Role { AsIs, Functional, InPlace, Out };

/// One overload at one dispatch key. It lives as long as the process, since a
/// thread may be inside it while a session closes.
struct Override {
  Override(const void *Function, OperatorHandle Op, c10::DispatchKey Key)
      : Function(Function), Op(std::move(Op)), Key(Key), Keys(Key) {}

  const void *Function; ///< the author's, see Id
  OperatorHandle Op;
  c10::DispatchKey Key;
  c10::DispatchKeySet Keys;
  KernelFunction Stock; ///< of Op at Key
  // Of the overload that has the type of the author's function.
  std::optional<OperatorHandle> AuthorOp;
  KernelFunction AuthorStock;
  // Of the functional overload at Meta, which gives the result without its
  // data.
  std::optional<OperatorHandle> MetaOp;
  KernelFunction Meta;
  std::vector<at::ScalarType> Dtypes; ///< empty for all
  int32_t Counter = -1;               ///< of udfprof_operator_udf
  KernelFunction Kernel;
};

/// An override that runs on this thread.
struct Frame {
  const Override *Running;
  Frame *Outer;
  bool Stock; ///< it has called the stock kernel
};

inline thread_local Frame *Innermost = nullptr;
inline thread_local uint64_t Recursions = 0;

/// Its address names a function of the author.
template <auto Function> inline char Id = 0;

inline std::string nameOf(const OperatorHandle &Op) {
  return c10::toString(Op.operator_name());
}

template <class T>
constexpr bool IsTensorList =
    std::is_same_v<T, at::TensorList> || std::is_same_v<T, at::ITensorListRef>;

template <class T> bool takes(const Override &O, const T &Argument) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (!Argument.defined())
      return true;
    for (at::ScalarType D : O.Dtypes)
      if (Argument.scalar_type() == D)
        return true;
    return false;
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    return !Argument || takes(O, *Argument);
  } else if constexpr (IsTensorList<T>) {
    for (const Tensor &Each : Argument)
      if (!takes(O, Each))
        return false;
    return true;
  } else {
    return true;
  }
}

template <class T> const Tensor *tensorIn(const T &Argument) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return Argument.defined() ? &Argument : nullptr;
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    return Argument ? tensorIn(*Argument) : nullptr;
  } else if constexpr (IsTensorList<T>) {
    return Argument.empty() ? nullptr : tensorIn(*Argument.begin());
  } else {
    return nullptr;
  }
}

template <class... A> const Tensor *firstTensor(const A &...Arguments) {
  const Tensor *Found = nullptr;
  (void)((Found = tensorIn(Arguments)) || ...);
  return Found;
}

/// While it lives, the thread is inside the function; then it is counted.
class Scope {
public:
  Scope(const Override &O, uint64_t Elements)
      : Here{&O, Innermost, false}, Elements(Elements),
        Pending(std::uncaught_exceptions()) {
    Innermost = &Here;
    if (O.Counter >= 0)
      Start = udfprof_ticks();
  }
  ~Scope() {
    Innermost = Here.Outer;
    if (Here.Running->Counter >= 0 && std::uncaught_exceptions() == Pending)
      udfprof_operator_udf(static_cast<uint32_t>(Here.Running->Counter),
                           Elements, Start);
  }
  Scope(const Scope &) = delete;
  Scope &operator=(const Scope &) = delete;

private:
  Frame Here;
  uint64_t Elements;
  int Pending;
  uint64_t Start = 0;
};

/// Whether this call goes to the stock kernel. Throws if the function has
/// called the operator that it stands in for.
template <class... A> bool stays(const Override &O, const A &...Arguments) {
  if (!O.Dtypes.empty() && !(takes(O, Arguments) && ...))
    return true;
  for (Frame *F = Innermost; F; F = F->Outer) {
    if (F->Running->Function != O.Function)
      continue;
    if (F->Stock)
      return true;
    ++Recursions;
    TORCH_CHECK(false, "The UDF of ", nameOf(F->Running->Op), " called ",
                nameOf(O.Op),
                ", which it replaces itself, and would recurse without "
                "end. Call the stock kernel with udf::stock<function>(...), or "
                "write the UDF without this operator.");
  }
  return false;
}

template <class... A> uint64_t elementsOf(const A &...Arguments) {
  const Tensor *First = firstTensor(Arguments...);
  return First ? static_cast<uint64_t>(First->numel()) : 0;
}

//===----------------------------------------------------------------------===//
// The function as it is
//===----------------------------------------------------------------------===//

template <auto Function> struct AsIsKernel;

template <class R, class... A, R (*Function)(A...)>
struct AsIsKernel<Function> final : c10::OperatorKernel {
  using Type = R(A...);
  explicit AsIsKernel(const Override &O) : O(O) {}
  R operator()(A... Arguments) {
    if (stays(O, Arguments...))
      return O.Stock.call<R, A...>(O.Op, O.Keys, std::forward<A>(Arguments)...);
    Scope Inside(O, elementsOf(Arguments...));
    return Function(std::forward<A>(Arguments)...);
  }
  const Override &O;
};

//===----------------------------------------------------------------------===//
// All three overloads by a function of out='s type
//===----------------------------------------------------------------------===//

template <class T> decltype(auto) toMeta(const T &Argument) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (!Argument.defined())
      return Tensor();
    Tensor Meta = at::empty_strided(Argument.sizes(), Argument.strides(),
                                    Argument.options().device(at::kMeta));
    // A number that torch turned into a tensor has less say in the result's
    // dtype.
    if (Argument.unsafeGetTensorImpl()->is_wrapped_number())
      Meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    return Meta;
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    return Argument ? std::optional<Tensor>(toMeta(*Argument)) : std::nullopt;
  } else {
    return (Argument);
  }
}

inline void checkCast(const Tensor &Like, const Tensor &To) {
  TORCH_CHECK(at::canCast(Like.scalar_type(), To.scalar_type()), "result type ",
              Like.scalar_type(), " can't be cast to the desired output type ",
              To.scalar_type());
}

inline Tensor allocate(const Tensor &Like, at::Device Device) {
  return at::empty_strided(Like.sizes(), Like.strides(),
                           Like.options().device(Device));
}

/// As torch's own kernels do: where the size changed, the strides are the
/// result's.
inline void resize(Tensor &To, const Tensor &Like) {
  if (at::native::resize_output(To, Like.sizes()))
    To.as_strided_(Like.sizes(), Like.strides());
}

template <auto Function, class Inputs> struct Three;

template <class... A, auto Function> struct Three<Function, std::tuple<A...>> {
  template <class First, class... Rest> struct Head {
    using InPlaceType = Tensor &(Tensor &, Rest...);
  };
  using FunctionalType = Tensor(A...);
  using InPlaceType = typename Head<A...>::InPlaceType;

  static Tensor result(const Override &O, const A &...Inputs) {
    return O.Meta.call<Tensor, A...>(
        *O.MetaOp, c10::DispatchKeySet(c10::DispatchKey::Meta),
        toMeta(Inputs)...);
  }

  /// Into a tensor that may have another dtype or size than the result.
  static void into(const Override &O, const Tensor &Like, bool Resize,
                   Tensor &To, A... Inputs) {
    if (Like.scalar_type() == To.scalar_type()) {
      if (Resize)
        resize(To, Like);
      Scope Inside(O, elementsOf(Inputs...));
      Function(std::forward<A>(Inputs)..., To);
      return;
    }
    checkCast(Like, To);
    Tensor Wide = allocate(Like, To.device());
    {
      Scope Inside(O, elementsOf(Inputs...));
      Function(std::forward<A>(Inputs)..., Wide);
    }
    if (Resize)
      resize(To, Like);
    To.copy_(Wide);
  }

  struct FunctionalKernel final : c10::OperatorKernel {
    explicit FunctionalKernel(const Override &O) : O(O) {}
    Tensor operator()(A... Inputs) {
      if (stays(O, Inputs...))
        return O.Stock.call<Tensor, A...>(O.Op, O.Keys,
                                          std::forward<A>(Inputs)...);
      Tensor To =
          allocate(result(O, Inputs...), firstTensor(Inputs...)->device());
      Scope Inside(O, elementsOf(Inputs...));
      Function(std::forward<A>(Inputs)..., To);
      return To;
    }
    const Override &O;
  };

  template <class Type> struct InPlaceKernel;
  template <class... Rest>
  struct InPlaceKernel<Tensor &(Tensor &, Rest...)> final
      : c10::OperatorKernel {
    explicit InPlaceKernel(const Override &O) : O(O) {}
    Tensor &operator()(Tensor &Self, Rest... Others) {
      if (stays(O, Self, Others...))
        return O.Stock.call<Tensor &, Tensor &, Rest...>(
            O.Op, O.Keys, Self, std::forward<Rest>(Others)...);
      Tensor Like = result(O, Self, Others...);
      TORCH_CHECK(Like.sizes() == Self.sizes(), "output with shape ",
                  Self.sizes(), " doesn't match the broadcast shape ",
                  Like.sizes());
      into(O, Like, false, Self, Self, std::forward<Rest>(Others)...);
      return Self;
    }
    const Override &O;
  };

  struct OutKernel final : c10::OperatorKernel {
    explicit OutKernel(const Override &O) : O(O) {}
    Tensor &operator()(A... Inputs, Tensor &To) {
      if (stays(O, Inputs..., To))
        return O.Stock.call<Tensor &, A..., Tensor &>(
            O.Op, O.Keys, std::forward<A>(Inputs)..., To);
      Tensor Like = result(O, Inputs...);
      into(O, Like, true, To, std::forward<A>(Inputs)...);
      return To;
    }
    const Override &O;
  };
};

/// The types of a function's parameters except the last.
template <class Parameters, class Indices> struct ButLast;
template <class Parameters, size_t... I>
struct ButLast<Parameters, std::index_sequence<I...>> {
  using Types = std::tuple<std::tuple_element_t<I, Parameters>...>;
};

template <auto Function> struct OutVariant {
  static constexpr bool Is = false;
};
template <class... A, Tensor &(*Function)(A...)> struct OutVariant<Function> {
  using All = std::tuple<A...>;
  // Lists of tensors have no meta form here.
  static constexpr bool Is = [] {
    if constexpr (sizeof...(A) < 2)
      return false;
    else
      return std::is_same_v<std::tuple_element_t<sizeof...(A) - 1, All>,
                            Tensor &> &&
             std::is_same_v<std::tuple_element_t<0, All>, const Tensor &> &&
             !(IsTensorList<std::decay_t<A>> || ...);
  }();
  using Inputs =
      typename ButLast<All, std::make_index_sequence<sizeof...(A) - 1>>::Types;
};

//===----------------------------------------------------------------------===//
// What the shared library offers for each function
//===----------------------------------------------------------------------===//

struct Entry {
  const void *Function;
  /// Throws with torch's words if the function does not fit in a role.
  void (*Fits)(Role, const OperatorHandle &);
  void (*Make)(Role, Override &);
};

template <class Type> void fits(const OperatorHandle &Op) {
  auto Schema = c10::inferFunctionSchemaFlattenedReturns<Type>();
  if (auto Difference = c10::findSchemaDifferences(Schema, Op.schema()))
    TORCH_CHECK(false, *Difference);
  (void)Op.typed<Type>(); // throws if torch's own kernels have another C++ type
}

template <class Kernel> void make(Override &O) {
  O.Kernel = KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(O));
}

template <auto Function> void fitsAs(Role How, const OperatorHandle &Op) {
  if constexpr (OutVariant<Function>::Is) {
    using T = Three<Function, typename OutVariant<Function>::Inputs>;
    if (How == Functional)
      return fits<typename T::FunctionalType>(Op);
    if (How == InPlace)
      return fits<typename T::InPlaceType>(Op);
  }
  TORCH_CHECK(How == AsIs || (How == Out && OutVariant<Function>::Is),
              "its type is not that of an out= overload, which returns a "
              "reference to a Tensor, takes const Tensor& first and Tensor& "
              "last, and takes no list of tensors");
  fits<typename AsIsKernel<Function>::Type>(Op);
}

template <auto Function> void makeAs(Role How, Override &O) {
  if constexpr (OutVariant<Function>::Is) {
    using T = Three<Function, typename OutVariant<Function>::Inputs>;
    if (How == Functional)
      return make<typename T::FunctionalKernel>(O);
    if (How == InPlace)
      return make<typename T::template InPlaceKernel<typename T::InPlaceType>>(
          O);
    if (How == Out)
      return make<typename T::OutKernel>(O);
  }
  make<AsIsKernel<Function>>(O);
}

template <auto Function> constexpr Entry entry() {
  return {&Id<Function>, fitsAs<Function>, makeAs<Function>};
}

inline OperatorHandle find(const char *Name) {
  std::string Text(Name);
  size_t Dot = Text.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      Text.substr(0, Dot).c_str(),
      Dot == std::string::npos ? "" : Text.substr(Dot + 1).c_str());
}

/// Runs \p Body. Returns 0, or -1 with what it threw in \p Message.
template <class Body>
int guarded(char *Message, size_t Size, const Body &Do) noexcept {
  const char *Text = "unknown error";
  try {
    Do();
    return 0;
  } catch (const c10::Error &E) {
    Text = E.what_without_backtrace();
    std::strncpy(Message, Text, Size - 1);
  } catch (const std::exception &E) {
    std::strncpy(Message, E.what(), Size - 1);
  } catch (...) {
    std::strncpy(Message, Text, Size - 1);
  }
  return -1;
}

template <auto Function> struct StockOf;
template <class R, class... A, R (*Function)(A...)> struct StockOf<Function> {
  static R call(A... Arguments) {
    for (Frame *F = Innermost; F; F = F->Outer)
      if (F->Running->Function == &Id<Function>) {
        Marked Now(F);
        return F->Running->AuthorStock.call<R, A...>(
            *F->Running->AuthorOp, F->Running->Keys,
            std::forward<A>(Arguments)...);
      }
    TORCH_CHECK(false,
                "udf::stock was called outside its UDF: the stock kernel "
                "is known only on the thread that torch called the UDF "
                "on, and only while the UDF runs.");
  }
  struct Marked {
    explicit Marked(Frame *F) : F(F), Before(std::exchange(F->Stock, true)) {}
    ~Marked() { F->Stock = Before; }
    Frame *F;
    bool Before;
  };
};

} // namespace detail

/// Calls the stock kernel of the overload that has the type of \p Function, at
/// the dispatch key that \p Function was called for. Works only while torch
/// calls \p Function.
template <auto Function, class... A> decltype(auto) stock(A &&...Arguments) {
  return detail::StockOf<Function>::call(std::forward<A>(Arguments)...);
}

} // namespace udf

//===----------------------------------------------------------------------===//
// Entry points; operator_udfs.py calls them.
//===----------------------------------------------------------------------===//

/// Lists the functions of a source; each is known by its place.
#define UDF_OPERATORS(...)                                                     \
  namespace {                                                                  \
  constexpr udf::detail::Entry UdfEntries[] = {__VA_ARGS__};                   \
  }                                                                            \
  extern "C" {                                                                 \
  UDFPROF_EXPORT int udfoperator_fits(int Index, int How, const char *Name,    \
                                      char *Message, size_t Size) {            \
    return udf::detail::guarded(Message, Size, [&] {                           \
      UdfEntries[Index].Fits(static_cast<udf::detail::Role>(How),              \
                             udf::detail::find(Name));                         \
    });                                                                        \
  }                                                                            \
  UDFPROF_EXPORT void *                                                        \
  udfoperator_make(int Index, int How, const char *Name, const char *Key,      \
                   const char *Author, const char *Meta, const char *Dtypes,   \
                   const void *Stock, const void *AuthorStock,                 \
                   int32_t Counter, char *Message, size_t Size) {              \
    udf::detail::Override *Made = nullptr;                                     \
    udf::detail::guarded(Message, Size, [&] {                                  \
      Made = udf::detail::makeOverride(UdfEntries[Index],                      \
                                       static_cast<udf::detail::Role>(How),    \
                                       Name, Key, Author, Meta, Dtypes);       \
      Made->Stock = *static_cast<const c10::KernelFunction *>(Stock);          \
      Made->AuthorStock =                                                      \
          *static_cast<const c10::KernelFunction *>(AuthorStock);              \
      Made->Counter = Counter;                                                 \
    });                                                                        \
    return Made;                                                               \
  }                                                                            \
  }

namespace udf {
namespace detail {

/// \p Author is the overload that has the function's type. \p Meta is the
/// functional one, or "" where the function is used as it is. \p Dtypes are
/// separated by blanks.
inline Override *makeOverride(const Entry &E, Role How, const char *Name,
                              const char *Key, const char *Author,
                              const char *Meta, const char *Dtypes) {
  auto O = std::make_unique<Override>(E.Function, find(Name),
                                      c10::parseDispatchKey(Key));
  O->AuthorOp = find(Author);
  if (*Meta) {
    O->MetaOp = find(Meta);
    O->Meta = kernelOf(*O->MetaOp, c10::DispatchKey::Meta);
  }
  const auto &Names = c10::getStringToDtypeMap();
  for (std::string Rest = Dtypes; !Rest.empty();) {
    size_t End = Rest.find(' ');
    O->Dtypes.push_back(Names.at(Rest.substr(0, End)));
    Rest = End == std::string::npos ? "" : Rest.substr(End + 1);
  }
  E.Make(How, *O);
  return O.release();
}

} // namespace detail
} // namespace udf

extern "C" {

/// The kernel of an override, a KernelFunction.
UDFPROF_EXPORT const void *udfoperator_kernel(void *Made) {
  return &static_cast<udf::detail::Override *>(Made)->Kernel;
}

/// Calls on this thread that would have recursed.
UDFPROF_EXPORT uint64_t udfoperator_recursions() {
  return udf::detail::Recursions;
}
}

#endif
