//===- team.c - OpenMP's numbers of threads, of the runtime that forked ---===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// What clang compiles forks threads through LLVM's libomp, and a process of
// torch has GNU's libgomp, which comes first where symbols are looked up. Both
// have omp_get_thread_num. In a thread of libomp, that of libgomp is 0: code
// that keeps a partial sum for each thread would write them all to one place.
//
// This file is linked into such code. Its functions are hidden, so calls are
// bound here, and ask the runtime that forks.
//
//===----------------------------------------------------------------------===//

#define _GNU_SOURCE
#include <dlfcn.h>

#define HIDDEN __attribute__((visibility("hidden")))

typedef int question(void);

extern void __kmpc_fork_call(void *, int, void *, ...) __attribute__((weak));

static question *ask(const char *name) {
  Dl_info runtime;
  void *found = 0;
  // Without a fork there is one thread, and any runtime gives its number.
  if (__kmpc_fork_call && dladdr((void *)__kmpc_fork_call, &runtime)) {
    void *handle = dlopen(runtime.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) {
      found = dlsym(handle, name);
      dlclose(handle);
    }
  }
  return (question *)(found ? found : dlsym(RTLD_DEFAULT, name));
}

#define QUESTION(Name)                                                         \
  HIDDEN int Name(void) {                                                      \
    static question *known;                                                    \
    question *here = __atomic_load_n(&known, __ATOMIC_RELAXED);                \
    if (!here) {                                                               \
      here = ask(#Name);                                                       \
      __atomic_store_n(&known, here, __ATOMIC_RELAXED);                        \
    }                                                                          \
    return here();                                                             \
  }

QUESTION(omp_get_thread_num)
QUESTION(omp_get_num_threads)
QUESTION(omp_in_parallel)
QUESTION(omp_get_level)
