//===- InstrumentManifest.cpp - What udf-instrument is to watch -----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Reads the manifest (-udf-instrument-manifest).
//
//===----------------------------------------------------------------------===//

#include "InstrumentManifest.h"
#include "Signature.h"
#include "Usage.h"

using namespace llvm;
using udf::Watched;

static bool readWatched(LLVMContext &Ctx, StringRef Where,
                        const json::Object &Entry, Watched &W) {
  std::optional<std::string> Symbol =
      udf::readName(Ctx, Where, Entry, "symbol");
  if (!Symbol)
    return false;
  W.Symbol = *Symbol;
  std::string Here = (Where + " (" + W.Symbol + ")").str();

  std::optional<StringRef> Kind = Entry.getString("form");
  unsigned Lanes = Kind ? udf::vectorLanes(*Kind) : 0;
  if (!Kind || (*Kind != "scalar" && *Kind != "array" && *Kind != "sincos" &&
                (Lanes == 0 || Lanes > 16))) {
    udf::usageError(Ctx, Here + ": 'form' must be scalar, array, sincos or "
                                "v<lanes> with a power of two from 2 to 16");
    return false;
  }
  W.Kind = Kind->str();
  if (!udf::readSignature(Ctx, Here, Entry, W.IsDouble, W.Arity))
    return false;

  std::optional<int64_t> Slot = Entry.getInteger("slot");
  if (!Slot || *Slot < 0 || *Slot > 0xffff) {
    udf::usageError(Ctx, Here + ": 'slot' must be a number from 0 to 65535");
    return false;
  }
  W.Slot = static_cast<unsigned>(*Slot);

  if (const json::Value *Chunk = Entry.get("chunk")) {
    std::optional<int64_t> Number = Chunk->getAsInteger();
    if (!Number || *Number < 0) {
      udf::usageError(Ctx, Here + ": 'chunk' must be a number of elements, or "
                                  "0 for all at once");
      return false;
    }
    W.Chunk = *Number;
  }
  if (const json::Value *Ordinary = Entry.get("ordinary")) {
    const json::Array *Range = Ordinary->getAsArray();
    std::optional<double> Low, High;
    if (Range && Range->size() == 2) {
      Low = (*Range)[0].getAsNumber();
      High = (*Range)[1].getAsNumber();
    }
    if (!Low || !High || !(*Low < *High) || W.Arity != 1 ||
        (W.Kind != "scalar" && !Lanes)) {
      udf::usageError(Ctx, Here +
                               ": 'ordinary' must be two numbers in order, "
                               "for a scalar or vector form of one argument");
      return false;
    }
    W.IsOrdinary = true;
    W.Low = *Low;
    W.High = *High;
  }
  if (const json::Value *Exponential = Entry.get("exponential")) {
    std::optional<bool> Is = Exponential->getAsBoolean();
    if (!Is || (*Is && !W.IsOrdinary)) {
      udf::usageError(Ctx, Here + ": 'exponential' must be true or false and "
                                  "needs 'ordinary'");
      return false;
    }
    W.IsExponential = *Is;
  }
  return true;
}

bool udf::readManifest(LLVMContext &Ctx, StringRef Path,
                       SmallVectorImpl<Watched> &All) {
  return readEntries(Ctx, "udf-instrument: manifest", Path, "watch",
                     [&](StringRef Where, const json::Object &Entry) {
                       All.emplace_back();
                       return readWatched(Ctx, Where, Entry, All.back());
                     });
}
