//===- patch.c - a libtorch on disk with a UDF library bound --------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Stands in for libtorch_cpu.so: it has its SONAME, and needs the original by
// an absolute path. The loader looks symbols up in an object's dependencies
// too, so whoever is linked with libtorch_cpu.so gets the original's code.
//
// A constructor runs after those of the dependencies, and after the loader has
// relocated every object that it loads together with this one. It stores the
// UDF library's functions in their slots. Exporting the functions instead would
// reach too much and too little: the program's own calls of expf would go to
// them, and libtorch's would not where libm comes earlier in the search.
//
// pytest_udftorch/swap/patch/stub.py compiles this file with a table of its
// own, as patch_table.h. docs/swap/patch.md says what a patch is.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include "udfrt.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct level {
  const char *Name;
  int CpuLevel; // see udfrt_cpu_level
  int Bits;     // width of its vector forms
  const char *File;
};

#include "patch_table.h"

/// The path of what this stands for; native/runtime.py asks.
UDFRT_EXPORT const char *const udfpatch_original = Original;

#define COUNT(Array) (sizeof(Array) / sizeof *(Array))

enum { Symbols = COUNT(SymbolNames), Capacity = 4 * Symbols };

static uint64_t Functions[Symbols]; // 0 where the level has no such form
static size_t SlotCount[COUNT(ObjectNames)];
static size_t GroupSlots[COUNT(GroupNames)];

__attribute__((noreturn, format(printf, 1, 2))) static void
fail(const char *Format, ...) {
  va_list Arguments;
  va_start(Arguments, Format);
  fprintf(stderr, "udftorch patch: ");
  vfprintf(stderr, Format, Arguments);
  fprintf(stderr, "\n");
  va_end(Arguments);
  abort(); // the loader cannot be told that a constructor failed
}

static void checkOriginal(void) {
  struct stat Now;
  if (stat(Original, &Now))
    fail("%s, which this patch was made from, is gone. Remove the patch with "
         "`udftorch patch --undo`.",
         Original);
  if (Now.st_size != OriginalSize)
    fail("%s has changed since this patch was made from it: was torch "
         "upgraded? Make the patch again.",
         Original);
}

static const struct level *chosenLevel(void) {
  int Have = udfrt_cpu_level();
  const char *Asked = getenv("UDFTORCH_CPU_LEVEL");
  const struct level *Best = NULL;
  for (size_t I = 0; I < COUNT(Levels); ++I)
    if (Asked && *Asked ? !strcmp(Asked, Levels[I].Name)
                        : Levels[I].CpuLevel <= Have)
      Best = &Levels[I];
  if (Asked && *Asked && (!Best || Best->CpuLevel > Have))
    fail("UDFTORCH_CPU_LEVEL=%s is no CPU level that this patch has and this "
         "CPU can run. Unset it to have the best.",
         Asked);
  if (!Best)
    fail("this CPU has no SSE4.2, which the least CPU level needs.");
  return Best;
}

/// Refuses a level whose vectors are narrower than those of torch's kernels:
/// their wider functions would stay stock.
static void checkWidth(const struct level *Level) {
  int Have = udfrt_cpu_level();
  int Bits = Have == 4 ? 512 : Have == 3 ? 256 : 0;
  const char *Capability = getenv("ATEN_CPU_CAPABILITY"); // torch's variable
  if (Capability && !strcmp(Capability, "avx2") && Bits > 256)
    Bits = 256;
  else if (Capability && !strcmp(Capability, "default"))
    Bits = 0;
  if (Bits > Level->Bits)
    fail("torch's kernels call %d-bit functions here, and the functions for "
         "the CPU level %s do not go that far. Make the patch again on this "
         "machine, or set ATEN_CPU_CAPABILITY=%s.",
         Bits, Level->Name, Level->Bits ? "avx2" : "default");
}

static void loadFunctions(const struct level *Level) {
  char Path[256];
  snprintf(Path, sizeof Path, "$ORIGIN/%s", Level->File);
  void *Library = dlopen(Path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!Library)
    fail("%s. Make the patch again.", dlerror());
  for (size_t I = 0; I < Symbols; ++I)
    Functions[I] = (uint64_t)(uintptr_t)dlsym(Library, ExportNames[I]);
}

static void bindObject(size_t Object) {
  static struct udfrt_slot Found[Capacity];
  static uint64_t Before[Capacity], After[Capacity], Seen[Capacity];
  long Count = udfrt_find(SymbolNames, Symbols, &ObjectNames[Object], 1, Found,
                          Capacity);
  if (Count < 0 || Count > Capacity)
    fail("the relocations of %s cannot be read.", ObjectNames[Object]);
  size_t Wanted = 0;
  for (long I = 0; I < Count; ++I)
    if (Functions[Found[I].symbol]) {
      After[Wanted] = Functions[Found[I].symbol];
      ++GroupSlots[Groups[Found[I].symbol]];
      Found[Wanted++] = Found[I];
    }
  udfrt_read(Found, Wanted, Before);
  if (udfrt_exchange(Found, Wanted, Before, After, Seen) ||
      memcmp(Before, Seen, Wanted * sizeof *Seen))
    fail("the slots of %s cannot be written.", ObjectNames[Object]);
  SlotCount[Object] = Wanted;
}

static void report(const char *Object, size_t Slots) {
  const char *Asked = getenv("UDFTORCH_PATCH_REPORT");
  if (Asked && *Asked && Slots)
    fprintf(stderr, "udftorch patch: %s: %zu slots of %s\n", Title, Slots,
            Object);
}

/// The stubs of objects that are loaded later call this. Slots that are bound
/// already are left alone: a session may have changed them since.
UDFRT_EXPORT void udfpatch_bind(const char *Name) {
  for (size_t O = 0; O < COUNT(ObjectNames); ++O)
    if (!strcmp(ObjectNames[O], Name) && !SlotCount[O]) {
      bindObject(O);
      report(Name, SlotCount[O]);
    }
}

/// Returns what this patch calls instead of a symbol, or 0; udfrt_resolve asks.
UDFRT_EXPORT uint64_t udfpatch_function(const char *Symbol) {
  for (size_t I = 0; I < Symbols; ++I)
    if (!strcmp(SymbolNames[I], Symbol))
      return Functions[I];
  return 0;
}

__attribute__((constructor)) static void bindAll(void) {
  checkOriginal();
  const struct level *Level = chosenLevel();
  checkWidth(Level);
  loadFunctions(Level);
  for (size_t O = 0; O < COUNT(ObjectNames); ++O)
    udfpatch_bind(ObjectNames[O]);
  for (size_t G = 0; G < COUNT(GroupNames); ++G)
    if (!GroupSlots[G])
      fail("this libtorch calls %s through no symbol that can be rebound. Make "
           "the patch again, with --functions and without this one.",
           GroupNames[G]);
}
