//===- udfrt.h - jump slots and call counters of a running process --------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The native half of a session: finds the relocation slots through which
// libtorch calls its math functions, exchanges what they point to, and offers
// counting trampolines that prove which of them an operator went through.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_UDFRT_H
#define UDFTORCH_UDFRT_H

#include <stddef.h>
#include <stdint.h>

#define UDFRT_EXPORT __attribute__((visibility("default")))

/// native/runtime.py reads the layout below, and checks its ABI
/// number when it loads the library.
#define UDFRT_ABI 5

/// Room for every symbol of pytest_udftorch/swap/library/symbols.py;
/// trampolines.S emits this many.
#define UDFRT_TRAMPOLINES 512

/// One relocated pointer of a loaded shared object.
struct udfrt_slot {
  uint64_t address; ///< where the pointer lies in memory
  uint32_t symbol;  ///< index into the caller's list of names
  uint32_t object;  ///< index into the caller's list of shared objects
  uint32_t type;    ///< R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT or R_X86_64_64,
                    ///< or R_AARCH64_JUMP_SLOT, _GLOB_DAT or _ABS64
  uint32_t relro;   ///< 1 if the loader write-protected it after relocation
  char version[24]; ///< symbol version asked for (GLIBC_2.27), or empty
};

UDFRT_EXPORT int udfrt_abi(void);

/// Highest x86-64 level this CPU and kernel support: 4 (AVX-512), 3 (AVX2 and
/// FMA), 2, or 1. On AArch64 it is 1.
UDFRT_EXPORT int udfrt_cpu_level(void);

/// Returns where the loaded object begins that \p address lies in, or 0. Unlike
/// dladdr, it does not search the object's symbols.
UDFRT_EXPORT uint64_t udfrt_object(uint64_t address);

/// Finds every slot of \p symbols in the loaded objects whose file name (no
/// folder) is one of \p objects. Writes at most \p capacity slots. Returns how
/// many there are, or -1 if an object has no dynamic section that can be read.
UDFRT_EXPORT long udfrt_find(const char *const *symbols, size_t symbol_count,
                             const char *const *objects, size_t object_count,
                             struct udfrt_slot *slots, size_t capacity);

/// Finds the slots of \p symbols in the shared object \p path, which need not
/// be for this machine and is not loaded. Addresses are those in the file. Sets
/// \p machine to its e_machine. Returns how many slots there are, or -1 if the
/// file is not a 64-bit shared object of a machine that is known.
UDFRT_EXPORT long udfrt_find_in_file(const char *path,
                                     const char *const *symbols,
                                     size_t symbol_count,
                                     struct udfrt_slot *slots, size_t capacity,
                                     uint32_t *machine);

/// Stores desired[i] in each slot that holds expected[i]. Sets found[i] to what
/// the slot held. Slots that hold something else keep their value. Returns 0,
/// or the errno of mprotect. Pages that were write-protected are protected
/// again on return.
UDFRT_EXPORT int udfrt_exchange(const struct udfrt_slot *slots, size_t count,
                                const uint64_t *expected,
                                const uint64_t *desired, uint64_t *found);

/// A number that changes when one of count files or folders does: its size, its
/// times, its inode, or whether it is there. paths holds their names, each with
/// a zero at its end.
UDFRT_EXPORT uint64_t udfrt_states(const char *paths, size_t count);

/// Reads the slots.
UDFRT_EXPORT void udfrt_read(const struct udfrt_slot *slots, size_t count,
                             uint64_t *values);

/// Returns the address that the loader would put into \p slot, or 0 if there is
/// none. Looks \p name up with its version, starting from the loaded \p object.
/// In a process on a patched libtorch it is what the patch put there.
UDFRT_EXPORT uint64_t udfrt_resolve(const char *object, const char *name,
                                    const char *version);

/// Counting trampoline \p index: adds one to udfrt_hits[index] and jumps to
/// udfrt_targets[index] with every argument register untouched.
UDFRT_EXPORT uint64_t udfrt_trampoline(size_t index);
UDFRT_EXPORT extern uint64_t udfrt_hits[UDFRT_TRAMPOLINES];
UDFRT_EXPORT extern uint64_t udfrt_targets[UDFRT_TRAMPOLINES];

/// Marking trampoline \p index: sets udfrt_marks[index] to 1 and jumps to
/// udfrt_marked[index]. It costs a call about as much as a second jump, on any
/// number of threads; the count above is atomic and costs more.
UDFRT_EXPORT uint64_t udfrt_marker(size_t index);
UDFRT_EXPORT extern uint8_t udfrt_marks[UDFRT_TRAMPOLINES];
UDFRT_EXPORT extern uint64_t udfrt_marked[UDFRT_TRAMPOLINES];

/// Functions of Python's C API; this library does not link to Python.
struct udfrt_python {
  void *(*call)(void *);                    ///< PyObject_CallNoArgs
  void (*release)(void *);                  ///< Py_DecRef
  void (*fetch)(void **, void **, void **); ///< PyErr_Fetch
  void (*restore)(void *, void *, void *);  ///< PyErr_Restore
};

/// Calls the Python object \p step until it raises nothing, at most \p tries
/// times, and leaves the first error set. Python runs signal handlers between
/// any two lines of its own, but not in this loop. The caller holds the GIL.
UDFRT_EXPORT void udfrt_insist(const struct udfrt_python *python, void *step,
                               int tries);

/// The MXCSR register of the calling thread (FTZ is bit 15, DAZ bit 6). On
/// AArch64 these two bits stand for FPCR.FZ.
UDFRT_EXPORT uint32_t udfrt_mxcsr(void);

#endif
