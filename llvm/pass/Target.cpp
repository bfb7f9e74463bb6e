//===- Target.cpp - The machine a function is compiled for ----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Attributes that say which CPU a function is for, and what that CPU offers.
//
//===----------------------------------------------------------------------===//

#include "Target.h"

#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/Module.h"
#include <algorithm>
#include <string>

using namespace llvm;

static constexpr const char *TargetAttributes[] = {
    "target-cpu", "target-features", "tune-cpu"};

void udf::copyTarget(const Function &From, Function &To) {
  for (const char *Name : TargetAttributes) {
    if (From.hasFnAttribute(Name))
      To.addFnAttr(From.getFnAttribute(Name));
    else
      To.removeFnAttr(Name);
  }
  // The length of SVE registers (-msve-vector-bits).
  To.removeFnAttr(Attribute::VScaleRange);
  if (From.hasFnAttribute(Attribute::VScaleRange))
    To.addFnAttr(From.getFnAttribute(Attribute::VScaleRange));
}

unsigned udf::widestRegisterBits(const Function &Model,
                                 FunctionAnalysisManager &FAM) {
  // The tuning of many CPUs prefers narrower registers than they have. For a
  // function that prefers 512 bits, the features alone decide.
  Module &M = *const_cast<Module *>(Model.getParent());
  Function *Probe = Function::Create(
      FunctionType::get(Type::getVoidTy(M.getContext()), false),
      GlobalValue::ExternalLinkage, "__udf_probe", M);
  copyTarget(Model, *Probe);
  Probe->addFnAttr("prefer-vector-width", "512");
  uint64_t Bits =
      FAM.getResult<TargetIRAnalysis>(*Probe)
          .getRegisterBitWidth(TargetTransformInfo::RGK_FixedWidthVector)
          .getFixedValue();
  FAM.clear(*Probe, Probe->getName());
  Probe->eraseFromParent();
  return static_cast<unsigned>(std::clamp<uint64_t>(Bits, 128, 512));
}

bool udf::hasFeatures(Function &F, StringRef Features,
                      FunctionAnalysisManager &FAM) {
  // A function may be inlined if it needs no feature that the caller lacks.
  Function *Probe = Function::Create(
      FunctionType::get(Type::getVoidTy(F.getContext()), false),
      GlobalValue::ExternalLinkage, "__udf_probe", *F.getParent());
  // The plainest CPU. Otherwise the probe would take that of the command line,
  // whose features a virtual machine need not have in full.
  Probe->addFnAttr("target-cpu", "x86-64");
  Probe->addFnAttr("target-features", Features);
  bool Has = FAM.getResult<TargetIRAnalysis>(F).areInlineCompatible(&F, Probe);
  Probe->eraseFromParent();
  return Has;
}

bool udf::hasOneVectorLength(const Function &F) {
  Attribute A = F.getFnAttribute(Attribute::VScaleRange);
  return A.isValid() && A.getVScaleRangeMax() == A.getVScaleRangeMin();
}

void udf::addVariant(std::string &Names, const Function &Scalar,
                     StringRef Variant, unsigned Lanes) {
  // The vector function ABI's name of a mapping, with LLVM's own letter for the
  // instruction set: the lanes alone decide.
  Names += (Twine(Names.empty() ? "" : ",") + "_ZGV_LLVM_N" + Twine(Lanes) +
            std::string(Scalar.arg_size(), 'v') + "_" + Scalar.getName() + "(" +
            Variant + ")")
               .str();
}

void udf::requireVectorWidth(Function &F, unsigned Bits) {
  F.addFnAttr("prefer-vector-width", std::to_string(Bits));
  F.addFnAttr("min-legal-vector-width", std::to_string(Bits));
}
