//===- ReplaceMap.cpp - The map of udf-replace ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Reads which functions get which forms of which bitcode (-udf-replace-map).
//
//===----------------------------------------------------------------------===//

#include "ReplaceWork.h"
#include "Usage.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

using namespace llvm;
using udf::ReplaceMap;

static cl::opt<std::string>
    MapPath("udf-replace-map", cl::value_desc("file"),
            cl::desc("JSON map from functions to the UDFs that replace them"));

std::string udf::replaceMapPath() {
  return optionOrEnvironment(MapPath, "UDFTORCH_REPLACE_MAP");
}

std::optional<ReplaceMap> udf::readMap(LLVMContext &Ctx, StringRef Path) {
  ReplaceMap Map;
  std::optional<json::Value> Root =
      udf::readJson(Ctx, "udf-replace: map", Path);
  if (!Root)
    return std::nullopt;
  std::string Where = ("udf-replace: map '" + Path + "'").str();
  const json::Object *Top = Root->getAsObject();
  std::optional<StringRef> Bitcode =
      Top ? Top->getString("bitcode") : std::nullopt;
  const json::Object *Targets = Top ? Top->getObject("targets") : nullptr;
  if (!Bitcode || Bitcode->empty() || !Targets) {
    udf::usageError(Ctx, Where + " must be an object with a string 'bitcode' "
                                 "and an object 'targets'");
    return std::nullopt;
  }
  Map.Path = Path.str();
  // A relative path starts at the map, so that a build can be moved whole.
  SmallString<128> File(*Bitcode);
  if (sys::path::is_relative(File)) {
    File = sys::path::parent_path(Path);
    sys::path::append(File, *Bitcode);
  }
  Map.Bitcode = File.str().str();
  if (!sys::fs::exists(Map.Bitcode)) {
    udf::usageError(Ctx, Where + ": the bitcode '" + Map.Bitcode +
                             "' does not exist; build the UDF library first "
                             "or correct 'bitcode' (relative paths start at "
                             "the map's folder)");
    return std::nullopt;
  }
  bool Ok = true;
  for (const auto &[Key, Value] : *Targets) {
    StringRef Target = Key;
    std::optional<StringRef> Replacement = Value.getAsString();
    if (Target.empty() || !Replacement || Replacement->empty()) {
      udf::usageError(Ctx, Where + ": target '" + Target +
                               "' must name its replacement as a non-empty "
                               "string");
      Ok = false;
      continue;
    }
    Map.Targets[Target.str()] = Replacement->str();
  }
  if (!Ok)
    return std::nullopt;
  return Map;
}
