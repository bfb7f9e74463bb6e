//===- InstrumentWork.h - A function that is watched ------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// What generated code knows of the runtime, and the pieces it is made of.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_INSTRUMENTWORK_H
#define UDF_PASS_INSTRUMENTWORK_H

#include "InstrumentManifest.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include <utility>

namespace udf {

// The words of struct udfprof_hot that generated code reads and writes.
// tests/watch/test_collection.py compares them with udfprof.h.
enum HotOffset : unsigned {
  Left = 0,
  Zeros = 8,
  Cell = 16,
  InLow = 24,
  InHigh = 32,
  OutLow = 40,
  OutHigh = 48,
  Infinities = 56,
  HotSize = 64
};

// The same of struct udfprof_cell.
enum CellOffset : unsigned { Due = 0, Live = 4, HotOf = 8 };

// Bits of udfprof_cell::due.
inline constexpr unsigned DueSample = 1, DueTime = 2;

/// Marks a function that is done; the value is its slot.
inline constexpr llvm::StringLiteral DoneMark = "udf-instrument";

/// One function of one module.
class InstrumentWork {
public:
  InstrumentWork(llvm::Module &M, const Watched &W)
      : M(M), Ctx(M.getContext()), W(W),
        ElemTy(W.IsDouble ? llvm::Type::getDoubleTy(Ctx)
                          : llvm::Type::getFloatTy(Ctx)) {}

  /// Finds the function; reports what is wrong and returns false.
  bool resolve();

  /// Moves blocks and arguments of F into a new internal function. F keeps its
  /// name, so every caller is watched, including other functions of the module.
  void moveBody();

  /// Creates a function beside F that is hardly ever called.
  llvm::Function *newCold(llvm::StringRef Suffix,
                          llvm::ArrayRef<llvm::Type *> Params);

  llvm::CallInst *callBody(llvm::IRBuilder<> &B,
                           llvm::ArrayRef<llvm::Value *> Args,
                           llvm::Attribute::AttrKind Inlining) const;

  /// The name of a function of observe.c for this type and number of lanes.
  std::string observer(llvm::StringRef What, bool WithLanes = true) const;

  /// Calls a function of observe.c, and returns what it returns: the last of
  /// the values.
  void returnObserver(llvm::IRBuilder<> &B, llvm::StringRef What,
                      llvm::ArrayRef<llvm::Value *> Values) const;

  /// The words of this function in the thread's row.
  llvm::Value *hot(llvm::IRBuilder<> &B) const;

  /// A word of a cell or of the row.
  llvm::Value *word(llvm::IRBuilder<> &B, llvm::Value *Cell,
                    unsigned Offset) const {
    return B.CreateInBoundsGEP(B.getInt8Ty(), Cell, B.getInt64(Offset));
  }

  /// The address that the function is called from, which tells the operator.
  llvm::Value *callerOf(llvm::IRBuilder<> &B) const;

  llvm::Value *allLanes(llvm::IRBuilder<> &B, llvm::Value *Truth) const;

  /// Whether each lane of X needs no second look: it is inside the bounds, and
  /// not NaN, zero or subnormal.
  llvm::Value *isOld(llvm::IRBuilder<> &B, llvm::Value *X, llvm::Value *Hot,
                     unsigned LowAt) const;

  /// Which lanes of X, an argument of an exponential, are zeros, and which are
  /// negative infinities.
  std::pair<llvm::Value *, llvm::Value *> zeroAndInfinity(llvm::IRBuilder<> &B,
                                                          llvm::Value *X) const;

  /// Counts the lanes that are true.
  void countPassed(llvm::IRBuilder<> &B, llvm::Value *Hot, llvm::Value *Zero,
                   llvm::Value *Infinity) const;

  uint64_t encoding(double X) const;

  unsigned lanes() const {
    auto *V = llvm::dyn_cast<llvm::FixedVectorType>(F->getReturnType());
    return V ? V->getNumElements() : 1;
  }
  llvm::MDNode *unlikely() const {
    return llvm::MDBuilder(Ctx).createBranchWeights(1, (1u << 20) - 1);
  }
  llvm::MDNode *likely() const {
    return llvm::MDBuilder(Ctx).createBranchWeights((1u << 20) - 1, 1);
  }

  llvm::Module &M;
  llvm::LLVMContext &Ctx;
  const Watched &W;
  llvm::Type *ElemTy;
  llvm::Function *F = nullptr;
  llvm::Function *Body = nullptr;
  /// Functions that were made or changed.
  llvm::SetVector<llvm::Function *> Changed;
};

} // namespace udf

#endif // UDF_PASS_INSTRUMENTWORK_H
