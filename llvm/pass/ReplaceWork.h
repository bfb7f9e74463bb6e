//===- ReplaceWork.h - What udf-replace has to do ---------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The steps of one run of udf-replace, and what they hand on: the map is read
// (ReplaceMap.cpp), its targets are found in the module (ReplaceFind.cpp), the
// forms are checked (ReplaceCheck.cpp), adapted to the module
// (ReplaceAdopt.cpp) and linked (ReplaceLink.cpp), and uses are rewritten
// (ReplaceRewrite.cpp, ReplaceBody.cpp, ReplaceIntrinsics.cpp).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_REPLACEWORK_H
#define UDF_PASS_REPLACEWORK_H

#include "Replace.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/IR/Function.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace udf {

// Marks on functions that came with the bitcode, on those of them that a target
// was bound to, on calls that they make, and on targets with a new body.
inline constexpr llvm::StringLiteral LinkedMark = "udf-linked";
inline constexpr llvm::StringLiteral BoundMark = "udf-form";
inline constexpr llvm::StringLiteral KeepMark = "udf-keep";
inline constexpr llvm::StringLiteral ReplacedMark = "udf-replaced";

struct ReplaceMap {
  std::string Path;
  std::string Bitcode;
  std::map<std::string, std::string> Targets; // sorted: one order of output
};

/// The replacements of one intrinsic on one element type, by lanes.
struct IntrinsicGroup {
  std::map<unsigned, std::pair<std::string, std::string>> ByLanes;
};

/// A function of the module, and the form that it gets.
struct Binding {
  llvm::Function *Target;
  std::string Replacement;
  bool NewBody;
};

struct IntrinsicBinding {
  llvm::Function *Target; // declaration of the intrinsic on one type
  const IntrinsicGroup *Group;
  std::map<unsigned, std::string> Forms; // by lanes; those that can be used
};

/// Targets of the map that the module has, and the CPU it is compiled for.
struct ReplaceWork {
  ReplaceWork() = default;
  ReplaceWork(const ReplaceWork &) = delete; // Needed points into Groups

  llvm::SmallVector<Binding, 8> Bindings;
  llvm::SmallVector<IntrinsicBinding, 8> IntrinsicBindings;
  std::map<std::pair<llvm::Intrinsic::ID, llvm::Type *>, IntrinsicGroup> Groups;
  // Names in the bitcode, owned by the map or by Groups.
  llvm::SetVector<llvm::StringRef> Needed;
  // A function of the module that stands for the CPU it is compiled for; null
  // when the module holds nothing but data.
  const llvm::Function *Model = nullptr;
  unsigned RegisterBits = 128;
  bool FmaIsSlow = false;

  bool empty() const { return Bindings.empty() && IntrinsicBindings.empty(); }
};

/// Scalar form -> its vector forms, by name.
using FormVariants =
    std::map<std::string,
             llvm::SmallVector<std::pair<unsigned, std::string>, 2>>;

/// One run of the pass over one module.
struct ReplaceRun {
  using Stages = ReplacePass::Stage;

  llvm::Module &M;
  llvm::LLVMContext &Ctx;
  llvm::FunctionAnalysisManager &FAM;
  const ReplaceMap &Map;
  const Stages Stage;
  const bool Optimizing;
  bool Failed = false;
  /// Functions that were made, or got other bodies, attributes or calls.
  llvm::SetVector<llvm::Function *> Changed = {};
  FormVariants Variants = {}; // of the forms that were linked

  /// Reports a mistake of the user's.
  void fail(const llvm::Twine &Message);
};

/// Reads the map; on failure reports and returns nothing.
std::optional<ReplaceMap> readMap(llvm::LLVMContext &Ctx, llvm::StringRef Path);

/// Finds the targets of the map in the module.
void findWork(ReplaceRun &R, ReplaceWork &W);

/// Brings the needed forms, and the vector forms beside them, into the module.
void linkForms(ReplaceRun &R, const ReplaceWork &W);

/// Makes every use of the targets one of the linked forms.
void rewriteUses(ReplaceRun &R, const ReplaceWork &W);

/// Whether an instruction belongs to the UDFs themselves.
bool isUdfCode(const llvm::Instruction &I);

/// Whether a use is in no instruction of the UDFs themselves.
bool isForeignUse(const llvm::Use &U);

/// The element type and lane count (1 for a scalar) of an intrinsic's result,
/// or nothing for a type that no UDF has.
std::optional<std::pair<llvm::Type *, unsigned>> shape(llvm::Type *T);

/// The function of this name if it came with the bitcode, or null.
llvm::Function *linkedForm(const llvm::Module &M, llvm::StringRef Name);

/// The path of the map, from its option or the environment; empty for none.
std::string replaceMapPath();

} // namespace udf

#endif // UDF_PASS_REPLACEWORK_H
