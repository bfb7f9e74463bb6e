//===- Compat.h - Differences between LLVM versions -------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The only header that looks at the LLVM version (16 and newer; 19 is tested).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_COMPAT_H
#define UDF_PASS_COMPAT_H

#include "llvm/ADT/Twine.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/IR/DiagnosticInfo.h"
#include "llvm/IR/DiagnosticPrinter.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/InstrTypes.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include <string>

#if LLVM_VERSION_MAJOR >= 22
#include "llvm/Plugins/PassPlugin.h"
#else
#include "llvm/Passes/PassPlugin.h"
#endif

#if LLVM_VERSION_MAJOR < 16
#error "the UDF passes need LLVM 16 or newer"
#endif

namespace udf::compat {

/// A plain error or warning of the user's own making. LLVM has a generic class
/// for it from 19 on only.
class UsageDiagnostic : public llvm::DiagnosticInfo {
public:
  UsageDiagnostic(const llvm::Twine &Message, llvm::DiagnosticSeverity Severity)
      : DiagnosticInfo(kind(), Severity), Message(Message.str()) {}

  void print(llvm::DiagnosticPrinter &Printer) const override {
    Printer << Message;
  }

private:
  static int kind() {
    static const int Kind = llvm::getNextAvailablePluginDiagnosticKind();
    return Kind;
  }

  std::string Message;
};

/// A GPU's estimate of 1 / sqrt of a double. LLVM 16 has none that flushes
/// subnormal numbers, and takes longer for the other.
inline constexpr llvm::Intrinsic::ID RootEstimate =
#if LLVM_VERSION_MAJOR >= 17
    llvm::Intrinsic::nvvm_rsqrt_approx_ftz_d;
#else
    llvm::Intrinsic::nvvm_rsqrt_approx_d;
#endif

/// The intrinsic of a name as it stands in IR, overloaded types and all.
inline llvm::Intrinsic::ID lookupIntrinsic(llvm::StringRef Name) {
#if LLVM_VERSION_MAJOR >= 20
  return llvm::Intrinsic::lookupIntrinsicID(Name);
#else
  return llvm::Function::lookupIntrinsicID(Name);
#endif
}

/// Forgets which classes of numbers a function is known not to return.
inline void forgetReturnedClasses([[maybe_unused]] llvm::Function &F) {
#if LLVM_VERSION_MAJOR >= 17
  F.removeRetAttr(llvm::Attribute::NoFPClass);
#endif
}

/// Whether LLVM keeps NVPTX's explicitly rounded product apart from a sum.
/// Older versions turn it into an ordinary, and so fusible, multiplication.
inline constexpr bool NvvmProductsStayApart = LLVM_VERSION_MAJOR >= 19;

/// Takes a string attribute off a call site.
inline void removeFnAttribute(llvm::CallBase &Call, llvm::StringRef Name) {
  Call.setAttributes(
      Call.getAttributes().removeFnAttribute(Call.getContext(), Name));
}

} // namespace udf::compat

#endif // UDF_PASS_COMPAT_H
