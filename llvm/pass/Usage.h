//===- Usage.h - What the user hands to the passes --------------*- C++ -*-===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Options, their environment fallbacks, JSON input and the errors about them.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_PASS_USAGE_H
#define UDF_PASS_USAGE_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/JSON.h"
#include <optional>
#include <string>

namespace llvm {
class LLVMContext;
class Type;
} // namespace llvm

namespace udf {

/// The value of an option, or of the environment variable that stands in for
/// it when the option is empty. clang parses `-mllvm` before `-fpass-plugin`
/// loads the plugin, so a plain `-fpass-plugin` build can only be configured
/// through the environment.
std::string optionOrEnvironment(llvm::StringRef Option, const char *Variable);

/// Reports a user's mistake as an ordinary compiler error: the host prints it,
/// runs to its end and returns failure, without a stack dump.
void usageError(llvm::LLVMContext &Ctx, const llvm::Twine &Message);

/// Reads \p Path as JSON. On failure, reports it and returns nothing. \p What
/// names the file's role ("udf-widen: manifest").
std::optional<llvm::json::Value>
readJson(llvm::LLVMContext &Ctx, llvm::StringRef What, llvm::StringRef Path);

/// Reads the array \p Key of the JSON object in the file \p Path. Hands each
/// entry to \p Read, which reports mistakes with the text that says where they
/// are and returns false. Returns whether everything could be read.
bool readEntries(
    llvm::LLVMContext &Ctx, llvm::StringRef What, llvm::StringRef Path,
    llvm::StringRef Key,
    llvm::function_ref<bool(llvm::StringRef, const llvm::json::Object &)> Read);

/// A name in an entry; on failure, reports it and returns nothing.
std::optional<std::string> readName(llvm::LLVMContext &Ctx,
                                    llvm::StringRef Where,
                                    const llvm::json::Object &Entry,
                                    llvm::StringRef Key);

/// Whether an entry has a type and an arity; reports what is wrong with them.
bool readSignature(llvm::LLVMContext &Ctx, llvm::StringRef Where,
                   const llvm::json::Object &Entry, bool &IsDouble,
                   unsigned &Arity);

/// A warning under the same rules.
void usageWarning(llvm::LLVMContext &Ctx, const llvm::Twine &Message);

/// Appends one JSON line to the file that -udf-report (or UDFTORCH_REPORT)
/// names. Does nothing when none is named. Compilers that run side by side do
/// not mix their lines.
void reportLine(llvm::LLVMContext &Ctx, llvm::json::Object Line);

/// A type as it is written in IR.
std::string typeName(const llvm::Type *T);

} // namespace udf

#endif // UDF_PASS_USAGE_H
