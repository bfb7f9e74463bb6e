//===- Lanes.cpp - Instructions that C has no operator for ----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-lanes: gives calls of a scalar function the vector instruction it is.
//
// AVX-512 scales by a power of two in one instruction, for example. A path
// writes it as the call of a static function with a body in C, which says the
// same: udf_lane_scale. In a form for AVX-512 the calls get vector variants
// that hold the instruction. Elsewhere the body is inlined.
//
//===----------------------------------------------------------------------===//

#include "Lanes.h"
#include "Preserved.h"
#include "Tables.h"
#include "Target.h"
#include "Widen.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/Statistic.h"
#include "llvm/IR/DerivedTypes.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/Module.h"
#include "llvm/TargetParser/Triple.h"
#include <algorithm>
#include <string>

#define DEBUG_TYPE "udf-lanes"

using namespace llvm;

STATISTIC(NumCalls, "Number of calls that got vector variants");

namespace {

/// One instruction, for registers of 512 and of 256 bits.
struct Operation {
  StringLiteral Name; // of the scalar function
  unsigned Arity;
  Intrinsic::ID Of512, Of256;
  int Immediate = -1; // behind the arguments, if the instruction has one
};

} // namespace

static constexpr Operation Known[] = {
    {"udf_lane_scale", 2, Intrinsic::x86_avx512_mask_scalef_ps_512,
     Intrinsic::x86_avx512_mask_scalef_ps_256},
    {"udf_lane_scale_double", 2, Intrinsic::x86_avx512_mask_scalef_pd_512,
     Intrinsic::x86_avx512_mask_scalef_pd_256},
    {"udf_lane_exponent", 1, Intrinsic::x86_avx512_mask_getexp_ps_512,
     Intrinsic::x86_avx512_mask_getexp_ps_256},
    // In [1, 2), and NaN for a negative argument.
    {"udf_lane_mantissa", 1, Intrinsic::x86_avx512_mask_getmant_ps_512,
     Intrinsic::x86_avx512_mask_getmant_ps_256, 0b1000},
};

/// The variant of \p Scalar for registers of \p Bits bits.
static Function *emitVariant(const Operation &Of, Function &Scalar,
                             unsigned Bits, const Function &Model) {
  Module &M = *Scalar.getParent();
  LLVMContext &Ctx = M.getContext();
  unsigned Lanes = Bits / Scalar.getReturnType()->getScalarSizeInBits();
  auto *Ty = FixedVectorType::get(Scalar.getReturnType(), Lanes);
  SmallVector<Type *, 2> Params(Scalar.arg_size(), Ty);
  Function *F = Function::Create(FunctionType::get(Ty, Params, false),
                                 GlobalValue::InternalLinkage,
                                 Scalar.getName() + ".v" + Twine(Lanes), M);
  udf::copyTarget(Model, *F);
  udf::requireVectorWidth(*F, Bits);
  IRBuilder<> B(BasicBlock::Create(Ctx, "entry", F));
  SmallVector<Value *, 6> Args;
  for (Argument &A : F->args())
    Args.push_back(&A);
  if (Of.Immediate >= 0)
    Args.push_back(B.getInt32(Of.Immediate));
  Args.push_back(Constant::getNullValue(Ty)); // of lanes that are masked: none
  Args.push_back(B.getIntN(std::max(Lanes, 8u), ~0ULL));
  if (Bits == 512)
    Args.push_back(B.getInt32(4)); // rounding: as the CPU is set
  B.CreateRet(B.CreateIntrinsic(Bits == 512 ? Of.Of512 : Of.Of256, {}, Args));
  return F;
}

/// Gives the calls of \p Scalar variants where the CPU has the instruction.
static void rewrite(const Operation &Of, Function &Scalar,
                    FunctionAnalysisManager &FAM,
                    SetVector<Function *> &Changed) {
  std::string Variants;
  bool IsX86 =
      Triple(Scalar.getParent()->getTargetTriple()).getArch() == Triple::x86_64;
  for (User *U : Scalar.users()) {
    auto *Call = dyn_cast<CallInst>(U);
    if (!IsX86 || !Call || Call->getCalledFunction() != &Scalar ||
        !Call->getFunction()->hasFnAttribute(udf::FormMark) ||
        !udf::hasFeatures(*Call->getFunction(), "+avx512f,+avx512vl", FAM))
      continue;
    if (Variants.empty())
      for (unsigned Bits : {256u, 512u}) {
        Function *F = emitVariant(Of, Scalar, Bits, *Call->getFunction());
        udf::markLateInline(*F);
        Changed.insert(F);
        auto *Ty = cast<FixedVectorType>(F->getReturnType());
        udf::addVariant(Variants, Scalar, F->getName(), Ty->getNumElements());
      }
    Call->addFnAttr(Attribute::get(Scalar.getContext(),
                                   "vector-function-abi-variant", Variants));
    Changed.insert(Call->getFunction());
    ++NumCalls;
  }
  udf::markLateInline(Scalar);
  Changed.insert(&Scalar);
}

PreservedAnalyses udf::LanesPass::run(Module &M, ModuleAnalysisManager &MAM) {
  auto &FAM = MAM.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
  SetVector<Function *> Changed;
  for (const Operation &O : Known)
    if (Function *F = M.getFunction(O.Name);
        F && F->hasLocalLinkage() && F->arg_size() == O.Arity)
      rewrite(O, *F, FAM, Changed);
  return Changed.empty() ? PreservedAnalyses::all()
                         : preservedBut(Changed.getArrayRef(), FAM);
}
