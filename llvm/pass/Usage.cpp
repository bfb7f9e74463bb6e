//===- Usage.cpp - What the user hands to the passes ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Options, their environment fallbacks, JSON input and the errors about them.
//
//===----------------------------------------------------------------------===//

#include "Usage.h"
#include "Compat.h"

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Type.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"
#include <cstdlib>

using namespace llvm;

static cl::opt<std::string>
    ReportPath("udf-report", cl::value_desc("file"),
               cl::desc("Append what the passes did to this file, as JSON "
                        "lines"));

std::string udf::optionOrEnvironment(StringRef Option, const char *Variable) {
  if (!Option.empty())
    return Option.str();
  const char *Value = std::getenv(Variable);
  return Value ? Value : "";
}

void udf::usageError(LLVMContext &Ctx, const Twine &Message) {
  Ctx.diagnose(compat::UsageDiagnostic(Message, DS_Error));
}

void udf::usageWarning(LLVMContext &Ctx, const Twine &Message) {
  Ctx.diagnose(compat::UsageDiagnostic(Message, DS_Warning));
}

void udf::reportLine(LLVMContext &Ctx, json::Object Line) {
  std::string Path = optionOrEnvironment(ReportPath, "UDFTORCH_REPORT");
  if (Path.empty())
    return;
  std::string Text;
  raw_string_ostream(Text) << json::Value(std::move(Line)) << '\n';
  std::error_code Error;
  raw_fd_ostream File(Path, Error, sys::fs::CD_OpenAlways, sys::fs::FA_Write,
                      sys::fs::OF_Append);
  if (!Error) {
    // One write for the whole line: O_APPEND then keeps lines apart.
    File.SetUnbuffered();
    File << Text;
    Error = File.error();
    File.clear_error();
  }
  if (Error)
    usageError(Ctx, "the report '" + Path + "' (-udf-report) cannot be " +
                        "written: " + Error.message() +
                        "; name a file in a writable folder");
}

std::optional<json::Value> udf::readJson(LLVMContext &Ctx, StringRef What,
                                         StringRef Path) {
  ErrorOr<std::unique_ptr<MemoryBuffer>> Buffer =
      MemoryBuffer::getFile(Path, /*IsText=*/true);
  if (!Buffer) {
    usageError(Ctx, What + " '" + Path +
                        "' cannot be read: " + Buffer.getError().message() +
                        "; give the path of a readable JSON file");
    return std::nullopt;
  }
  Expected<json::Value> Parsed = json::parse((*Buffer)->getBuffer());
  if (!Parsed) {
    usageError(Ctx, What + " '" + Path + "' is not valid JSON: " +
                        toString(Parsed.takeError()) + "; correct the file");
    return std::nullopt;
  }
  return std::move(*Parsed);
}

bool udf::readEntries(
    LLVMContext &Ctx, StringRef What, StringRef Path, StringRef Key,
    function_ref<bool(StringRef, const json::Object &)> Read) {
  std::optional<json::Value> Root = readJson(Ctx, What, Path);
  if (!Root)
    return false;
  std::string Where = (What + " '" + Path + "'").str();
  const json::Object *Top = Root->getAsObject();
  const json::Array *Entries = Top ? Top->getArray(Key) : nullptr;
  if (!Entries) {
    usageError(Ctx, Where + " must be an object with an array '" + Key + "'");
    return false;
  }
  bool Ok = true;
  for (unsigned Index = 0; Index < Entries->size(); ++Index) {
    std::string Here = (Where + ": " + Key + "[" + Twine(Index) + "]").str();
    const json::Object *Entry = (*Entries)[Index].getAsObject();
    if (!Entry)
      usageError(Ctx, Here + " must be an object");
    Ok &= Entry && Read(Here, *Entry);
  }
  return Ok;
}

std::optional<std::string> udf::readName(LLVMContext &Ctx, StringRef Where,
                                         const json::Object &Entry,
                                         StringRef Key) {
  std::optional<StringRef> Name = Entry.getString(Key);
  if (!Name || Name->empty()) {
    usageError(Ctx, Where + ": '" + Key + "' must be a non-empty string");
    return std::nullopt;
  }
  return Name->str();
}

bool udf::readSignature(LLVMContext &Ctx, StringRef Where,
                        const json::Object &Entry, bool &IsDouble,
                        unsigned &Arity) {
  std::optional<StringRef> Ty = Entry.getString("type");
  if (!Ty || (*Ty != "float" && *Ty != "double")) {
    usageError(Ctx, Where + ": 'type' must be \"float\" or \"double\"");
    return false;
  }
  IsDouble = *Ty == "double";
  std::optional<int64_t> Number = Entry.getInteger("arity");
  if (!Number || (*Number != 1 && *Number != 2)) {
    usageError(Ctx, Where + ": 'arity' must be 1 or 2");
    return false;
  }
  Arity = static_cast<unsigned>(*Number);
  return true;
}

std::string udf::typeName(const Type *T) {
  std::string Text;
  raw_string_ostream(Text) << *T;
  return Text;
}
