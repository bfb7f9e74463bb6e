//===- InstrumentWork.cpp - A function that is watched --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Finds the function, moves its body away, and writes the pieces that the code
// in its place is made of.
//
//===----------------------------------------------------------------------===//

#include "InstrumentWork.h"
#include "Signature.h"
#include "Usage.h"

#include "llvm/ADT/StringExtras.h"

using namespace llvm;
using udf::InstrumentWork;

bool InstrumentWork::resolve() {
  F = M.getFunction(W.Symbol);
  if (!F || F->isDeclaration()) {
    udf::usageError(Ctx, "udf-instrument: the manifest names '" + W.Symbol +
                             "', but module '" + M.getName() + "' " +
                             (F ? "only declares it" : "has no such function") +
                             "; compile the source that defines it, or let "
                             "udf-widen make it in the same run");
    return false;
  }
  FunctionType *Expected;
  if (W.Kind == "sincos") {
    Type *Pointer = PointerType::getUnqual(Ctx);
    Expected = FunctionType::get(Type::getVoidTy(Ctx),
                                 {ElemTy, Pointer, Pointer}, false);
  } else {
    Expected = formType(W.Kind, ElemTy, W.Arity);
  }
  if (F->getFunctionType() != Expected) {
    udf::usageError(Ctx, "udf-instrument: '" + W.Symbol + "' of form " +
                             W.Kind + " must have the type " +
                             udf::typeName(Expected) + " but has " +
                             udf::typeName(F->getFunctionType()) +
                             "; correct 'form', 'type' and 'arity' in the "
                             "manifest");
    return false;
  }
  return true;
}

void InstrumentWork::moveBody() {
  Body = Function::Create(F->getFunctionType(), GlobalValue::InternalLinkage,
                          F->getName() + ".body", M);
  Body->copyAttributesFrom(F);
  Body->setLinkage(GlobalValue::InternalLinkage);
  Body->setVisibility(GlobalValue::DefaultVisibility);
  Body->setDSOLocal(true);
  Body->setComdat(nullptr);
  Body->setSubprogram(F->getSubprogram());
  F->setSubprogram(nullptr);
  Body->splice(Body->begin(), F);
  for (auto [From, To] : zip(F->args(), Body->args())) {
    From.replaceAllUsesWith(&To);
    To.takeName(&From);
  }
  // F now counts, so what the body promised about memory and recursion no
  // longer holds, and nothing may be folded over its results.
  for (Attribute::AttrKind Kind :
       {Attribute::Memory, Attribute::Speculatable, Attribute::NoSync,
        Attribute::NoFree, Attribute::NoCallback, Attribute::NoRecurse,
        Attribute::WillReturn, Attribute::AlwaysInline, Attribute::MustProgress,
        Attribute::OptimizeNone})
    F->removeFnAttr(Kind);
  Body->removeFnAttr(Attribute::AlwaysInline);
  Body->removeFnAttr(Attribute::OptimizeNone);
  Body->removeFnAttr(Attribute::NoInline);
  Changed.insert(F);
  Changed.insert(Body);
}

Function *InstrumentWork::newCold(StringRef Suffix, ArrayRef<Type *> Params) {
  Function *Cold =
      Function::Create(FunctionType::get(F->getReturnType(), Params, false),
                       GlobalValue::InternalLinkage, F->getName() + Suffix, M);
  for (Attribute A : F->getAttributes().getFnAttrs())
    if (A.isStringAttribute() && A.getKindAsString() != DoneMark)
      Cold->addFnAttr(A);
  if (F->hasFnAttribute(Attribute::UWTable))
    Cold->addFnAttr(F->getFnAttribute(Attribute::UWTable));
  Cold->addFnAttr(Attribute::NoInline);
  Cold->addFnAttr(Attribute::Cold);
  Changed.insert(Cold);
  return Cold;
}

CallInst *InstrumentWork::callBody(IRBuilder<> &B, ArrayRef<Value *> Args,
                                   Attribute::AttrKind Inlining) const {
  CallInst *Y = B.CreateCall(Body, Args);
  Y->setCallingConv(Body->getCallingConv());
  Y->addFnAttr(Inlining);
  return Y;
}

std::string InstrumentWork::observer(StringRef What, bool WithLanes) const {
  std::string Name = ("__udf_" + What + "_" + (W.IsDouble ? "d" : "f")).str();
  return WithLanes ? Name + utostr(lanes()) : Name;
}

void InstrumentWork::returnObserver(IRBuilder<> &B, StringRef What,
                                    ArrayRef<Value *> Values) const {
  SmallVector<Type *, 4> Types;
  for (Value *V : Values)
    Types.push_back(V->getType());
  auto *Ty = FunctionType::get(F->getReturnType(), Types, false);
  CallInst *Z = B.CreateCall(M.getOrInsertFunction(observer(What), Ty), Values);
  Z->setTailCall();
  B.CreateRet(Z);
}

uint64_t InstrumentWork::encoding(double X) const {
  APFloat Value(X);
  bool Inexact = false;
  Value.convert(ElemTy->getFltSemantics(), APFloat::rmNearestTiesToEven,
                &Inexact);
  return Value.bitcastToAPInt().getZExtValue();
}

Value *InstrumentWork::hot(IRBuilder<> &B) const {
  Type *Pointer = B.getPtrTy();
  auto *Row =
      cast<GlobalVariable>(M.getOrInsertGlobal("udfprof_row", Pointer, [&] {
        auto *G = new GlobalVariable(
            M, Pointer, /*isConstant=*/false, GlobalValue::ExternalLinkage,
            /*Initializer=*/nullptr, "udfprof_row", /*InsertBefore=*/nullptr,
            GlobalValue::InitialExecTLSModel);
        return G;
      }));
  Value *Start = B.CreateAlignedLoad(Pointer, B.CreateThreadLocalAddress(Row),
                                     Align(8), "row");
  return word(B, Start, W.Slot * HotOffset::HotSize);
}

Value *InstrumentWork::callerOf(IRBuilder<> &B) const {
  return B.CreateIntrinsic(Intrinsic::returnaddress, {}, {B.getInt32(0)});
}

Value *InstrumentWork::allLanes(IRBuilder<> &B, Value *Truth) const {
  if (lanes() == 1)
    return Truth;
  return B.CreateICmpEQ(B.CreateBitCast(Truth, B.getIntNTy(lanes())),
                        Constant::getAllOnesValue(B.getIntNTy(lanes())));
}

// Infinities are outside, since bounds are finite. A minimum and a maximum
// leave a value inside the bounds as it is; for vectors that takes less time
// than two comparisons. Empty bounds are +inf and 0, which leave only zeros as
// they are. Subnormals are recognised by their encoding, whatever DAZ is.
Value *InstrumentWork::isOld(IRBuilder<> &B, Value *X, Value *Hot,
                             unsigned LowAt) const {
  Type *T = X->getType();
  auto Splat = [&](Value *V) {
    return T->isVectorTy() ? B.CreateVectorSplat(lanes(), V) : V;
  };
  Value *Low =
      Splat(B.CreateAlignedLoad(ElemTy, word(B, Hot, LowAt), Align(8), "low"));
  Value *High = Splat(
      B.CreateAlignedLoad(ElemTy, word(B, Hot, LowAt + 8), Align(8), "high"));
  unsigned Bits = W.IsDouble ? 64 : 32;
  Type *Int = T->getWithNewType(B.getIntNTy(Bits));
  Value *Encoding = B.CreateBitCast(X, Int);
  Value *Clamped = B.CreateSelect(B.CreateFCmpOGT(X, Low), X, Low);
  Clamped = B.CreateSelect(B.CreateFCmpOLT(Clamped, High), Clamped, High);
  Value *Inside = B.CreateICmpEQ(B.CreateBitCast(Clamped, Int), Encoding);
  Value *Exponent = B.CreateAnd(
      Encoding,
      ConstantInt::get(Int, W.IsDouble ? 0x7ff0000000000000 : 0x7f800000));
  return B.CreateAnd(Inside,
                     B.CreateICmpNE(Exponent, Constant::getNullValue(Int)));
}

std::pair<Value *, Value *> InstrumentWork::zeroAndInfinity(IRBuilder<> &B,
                                                            Value *X) const {
  unsigned Bits = W.IsDouble ? 64 : 32;
  Type *Int = X->getType()->getWithNewType(B.getIntNTy(Bits));
  Value *Encoding = B.CreateBitCast(X, Int);
  // Read from a variable (of observe.c), or LLVM would compare with 0.0, which
  // subnormals equal under DAZ.
  std::string Name = ("__udf_magnitude_" + Twine(W.IsDouble ? "d" : "f")).str();
  Type *ElemInt = B.getIntNTy(Bits);
  auto *Variable = cast<GlobalVariable>(M.getOrInsertGlobal(Name, ElemInt, [&] {
    auto *G = new GlobalVariable(M, ElemInt, /*isConstant=*/false,
                                 GlobalValue::ExternalLinkage,
                                 /*Initializer=*/nullptr, Name);
    G->setVisibility(GlobalValue::HiddenVisibility);
    G->setDSOLocal(true);
    return G;
  }));
  Value *Mask = B.CreateAlignedLoad(ElemInt, Variable, Align(Bits / 8));
  if (lanes() > 1)
    Mask = B.CreateVectorSplat(lanes(), Mask);
  Value *Magnitude = B.CreateAnd(Encoding, Mask);
  Value *Zero = B.CreateICmpEQ(Magnitude, Constant::getNullValue(Int), "zero");
  Value *Infinity = B.CreateICmpEQ(
      Encoding,
      ConstantInt::get(Int, APFloat::getInf(ElemTy->getFltSemantics(),
                                            /*Negative=*/true)
                                .bitcastToAPInt()),
      "infinity");
  return {Zero, Infinity};
}

void InstrumentWork::countPassed(IRBuilder<> &B, Value *Hot, Value *Zero,
                                 Value *Infinity) const {
  Type *I64 = B.getInt64Ty();
  for (auto [Offset, Is] :
       {std::pair<unsigned, Value *>{HotOffset::Zeros, Zero},
        {HotOffset::Infinities, Infinity}}) {
    Value *Count = Is;
    if (lanes() > 1)
      Count = B.CreateUnaryIntrinsic(
          Intrinsic::ctpop,
          B.CreateZExt(B.CreateBitCast(Is, B.getIntNTy(lanes())),
                       B.getInt32Ty()));
    Value *At = word(B, Hot, Offset);
    B.CreateAlignedStore(B.CreateAdd(B.CreateAlignedLoad(I64, At, Align(8)),
                                     B.CreateZExt(Count, I64)),
                         At, Align(8));
  }
}
