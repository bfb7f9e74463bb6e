//===- patch_later.c - a patched object that may be loaded later ----------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Stands in for an object of libtorch that a program may load after
// libtorch_cpu.so, as patch.c stands in for that one: its constructor runs when
// the original's slots are there, and has patch.c bind them.
//
//===----------------------------------------------------------------------===//

// stub.py defines Object, the file's name, and Original, its path, as strings.

/// As in patch.c.
__attribute__((visibility("default"))) const char *const udfpatch_original =
    Original;

/// Missing where the process had loaded the original libtorch_cpu.so before.
__attribute__((weak)) void udfpatch_bind(const char *Name);

__attribute__((constructor)) static void bindThis(void) {
  if (udfpatch_bind)
    udfpatch_bind(Object);
}
