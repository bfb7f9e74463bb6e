//===- Tables.h - Small tables held in vector registers ---------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// udf-tables: turns look-ups in small tables into register permutations.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_TABLES_H
#define UDF_PASS_TABLES_H

#include "llvm/ADT/StringRef.h"
#include "llvm/IR/PassManager.h"

namespace udf {

/// Marks functions that stand for an instruction until the vectorisers are
/// done. Then udf-tables<late> inlines their calls.
inline constexpr llvm::StringLiteral LateInlineMark = "udf-late-inline";

/// Gives \p F this mark, and says that it does no more than compute.
void markLateInline(llvm::Function &F);

/// Runs twice in clang's pipeline. Before the vectorisers, it turns the
/// look-ups of the forms that udf-widen made into calls with vector variants.
/// After them, it inlines what these calls have become.
struct TablesPass : llvm::PassInfoMixin<TablesPass> {
  enum class Stage { Early, Late };

  explicit TablesPass(Stage S) : S(S) {}

  llvm::PreservedAnalyses run(llvm::Module &M,
                              llvm::ModuleAnalysisManager &MAM);

private:
  Stage S;
};

} // namespace udf

#endif // UDF_PASS_TABLES_H
