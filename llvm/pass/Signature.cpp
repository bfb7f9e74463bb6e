//===- Signature.cpp - The C types of forms -------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// What the manifests of udf-widen and udf-instrument say of a function's type.
//
//===----------------------------------------------------------------------===//

#include "Signature.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"

using namespace llvm;

unsigned udf::vectorLanes(StringRef Kind) {
  unsigned Lanes = 0;
  if (!Kind.consume_front("v") || Kind.getAsInteger(10, Lanes) ||
      !isPowerOf2_32(Lanes) || Lanes < 2 || Lanes > 64)
    return 0;
  return Lanes;
}

FunctionType *udf::formType(StringRef Kind, Type *Element, unsigned Arity) {
  LLVMContext &Ctx = Element->getContext();
  if (Kind == "array") {
    Type *I64 = Type::getInt64Ty(Ctx);
    SmallVector<Type *, 5> Params{I64};
    Params.append(Arity + 1, PointerType::getUnqual(Ctx));
    Params.push_back(I64);
    return FunctionType::get(Type::getVoidTy(Ctx), Params, false);
  }
  Type *T = Element;
  if (Kind == "vx")
    T = ScalableVectorType::get(Element, 128 / Element->getScalarSizeInBits());
  else if (unsigned Lanes = vectorLanes(Kind))
    T = FixedVectorType::get(Element, Lanes);
  return FunctionType::get(T, SmallVector<Type *, 2>(Arity, T), false);
}
