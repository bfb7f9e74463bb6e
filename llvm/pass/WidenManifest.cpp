//===- WidenManifest.cpp - What udf-widen is to make ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Reads the manifest (-udf-widen-manifest).
//
//===----------------------------------------------------------------------===//

#include "WidenManifest.h"
#include "Signature.h"
#include "Usage.h"

#include "llvm/ADT/STLExtras.h"
#include <tuple>

using namespace llvm;
using udf::Form;
using udf::WidenedUdf;

static bool readForms(LLVMContext &Ctx, StringRef Where,
                      const json::Object &Entry, WidenedUdf &U) {
  const json::Object *Forms = Entry.getObject("forms");
  if (!Forms || Forms->empty()) {
    udf::usageError(Ctx, Where + ": 'forms' must be a non-empty object that "
                                 "maps forms (scalar, v<lanes>, vx, array) to "
                                 "symbols");
    return false;
  }
  for (const auto &[Key, SymbolValue] : *Forms) {
    std::optional<StringRef> Symbol = SymbolValue.getAsString();
    if (!Symbol || Symbol->empty()) {
      udf::usageError(Ctx, Where + ": the symbol of form '" +
                               Twine(StringRef(Key)) +
                               "' must be a non-empty string");
      return false;
    }
    Form F{StringRef(Key).str(), 0, Symbol->str()};
    if (F.Kind == "scalar") {
      F.Lanes = 1;
    } else if (F.Kind != "array" && F.Kind != "vx") {
      F.Lanes = udf::vectorLanes(F.Kind);
      if (F.Lanes == 0) {
        udf::usageError(Ctx, Where + ": unknown form '" + F.Kind +
                                 "'; use scalar, array, vx, or v<lanes> with a "
                                 "power of two from 2 to 64");
        return false;
      }
    }
    U.Forms.push_back(std::move(F));
  }
  // json::Object has no fixed order; the output must have one.
  llvm::sort(U.Forms, [](const Form &A, const Form &B) {
    return std::tie(A.Lanes, A.Kind) < std::tie(B.Lanes, B.Kind);
  });
  return true;
}

static bool readUdf(LLVMContext &Ctx, StringRef Where,
                    const json::Object &Entry, WidenedUdf &U) {
  std::optional<std::string> Name = udf::readName(Ctx, Where, Entry, "name");
  if (!Name)
    return false;
  U.Name = *Name;
  std::string Here = (Where + " (" + U.Name + ")").str();
  if (!udf::readSignature(Ctx, Here, Entry, U.IsDouble, U.Arity))
    return false;

  for (auto [Key, Field] : {std::pair{"scalar", &U.Scalar},
                            {"short", &U.Short},
                            {"quick", &U.Quick},
                            {"fast", &U.Fast},
                            {"accurate", &U.Accurate}}) {
    const json::Value *V = Entry.get(Key);
    if (!V || V->kind() == json::Value::Null)
      continue;
    std::optional<StringRef> Text = V->getAsString();
    if (!Text || Text->empty()) {
      udf::usageError(Ctx, Here + ": '" + Key +
                               "' must be null or the name of a function");
      return false;
    }
    *Field = Text->str();
  }
  bool HasScalar = !U.Scalar.empty();
  bool HasFast = !U.Fast.empty(), HasAccurate = !U.Accurate.empty();
  if (HasFast != HasAccurate || HasScalar == HasFast) {
    udf::usageError(Ctx, Here + ": give either 'scalar' alone or 'fast' and "
                                "'accurate' together");
    return false;
  }
  for (auto [Key, Name] : {std::pair{"short", &U.Short}, {"quick", &U.Quick}})
    if (!Name->empty() && !HasFast) {
      udf::usageError(Ctx, Here + ": '" + Key +
                               "' goes before 'fast'; give 'fast' and "
                               "'accurate' too");
      return false;
    }
  return readForms(Ctx, Here, Entry, U);
}

bool udf::readManifest(LLVMContext &Ctx, StringRef Path,
                       SmallVectorImpl<WidenedUdf> &Udfs) {
  return readEntries(Ctx, "udf-widen: manifest", Path, "functions",
                     [&](StringRef Where, const json::Object &Entry) {
                       Udfs.emplace_back();
                       return readUdf(Ctx, Where, Entry, Udfs.back());
                     });
}
