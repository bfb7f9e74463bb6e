//===- WidenWork.h - One UDF that udf-widen widens --------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The author's functions in a module, and functions made beside them.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_WIDENWORK_H
#define UDF_PASS_WIDENWORK_H

#include "WidenManifest.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/DerivedTypes.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include <algorithm>

namespace udf {

/// One UDF of one module, and the CPU that it is compiled for.
class WidenWork {
public:
  WidenWork(llvm::Module &M, const WidenedUdf &U)
      : M(M), Ctx(M.getContext()), U(U),
        ElemTy(U.IsDouble ? llvm::Type::getDoubleTy(Ctx)
                          : llvm::Type::getFloatTy(Ctx)) {}

  /// Looks up the UDF's functions; reports what is wrong and returns false.
  bool resolve();

  /// Says what is inlined and what is not.
  void pinInlining();

  /// Declares a function that is compiled for the same machine and under the
  /// same rules as the author's function. Reports why it cannot, and returns
  /// null.
  llvm::Function *declare(llvm::StringRef Symbol, llvm::FunctionType *Ty,
                          llvm::GlobalValue::LinkageTypes Linkage);

  /// The same for an internal function that is hardly ever called.
  llvm::Function *declareCold(const llvm::Twine &Symbol,
                              llvm::FunctionType *Ty);

  /// The function that a vector or array form begins with.
  llvm::Function *firstStep() const {
    return Quick ? Quick : Fast ? Fast : Scalar;
  }
  /// The function whose attributes say which CPU the UDF is compiled for.
  const llvm::Function *model() const { return Fast ? Fast : Scalar; }
  llvm::VectorType *vectorType(unsigned Lanes) const {
    return llvm::FixedVectorType::get(ElemTy, Lanes);
  }
  llvm::Align elementAlign() const { return llvm::Align(U.IsDouble ? 8 : 4); }
  llvm::Align vectorAlign(unsigned Lanes) const {
    return llvm::Align(std::min<uint64_t>(64, Lanes * elementAlign().value()));
  }
  unsigned elementBits() const { return U.IsDouble ? 64 : 32; }
  llvm::MDNode *unlikely() const {
    // Hard lanes are the exception by construction (one in hundreds or fewer);
    // the weight keeps their code out of the hot loop's layout and registers.
    return llvm::MDBuilder(Ctx).createBranchWeights(1, (1u << 20) - 1);
  }

  llvm::Module &M;
  llvm::LLVMContext &Ctx;
  const WidenedUdf &U;
  llvm::Type *ElemTy;
  llvm::Function *Scalar = nullptr, *Short = nullptr, *Quick = nullptr;
  llvm::Function *Fast = nullptr, *Accurate = nullptr;
  unsigned RegisterBits = 128;
  /// Functions that were made, or got other attributes or calls.
  llvm::SetVector<llvm::Function *> Changed;

private:
  llvm::Function *find(const std::string &Name, bool IsFast) const;
};

} // namespace udf

#endif // UDF_PASS_WIDENWORK_H
