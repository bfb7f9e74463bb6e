// SPDX-License-Identifier: Apache-2.0
// A program that was linked with the original: writes exp of its inputs to its
// output, and loads the libraries that its arguments name.
#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linspace.h>

#include <cstdio>
#include <dlfcn.h>

int main(int Count, char **Names) {
  at::Tensor Y = at::exp(at::linspace(-9, 1, 4001));
  fwrite(Y.const_data_ptr<float>(), sizeof(float), Y.numel(), stdout);
  for (int I = 1; I < Count; ++I)
    if (!dlopen(Names[I], RTLD_NOW))
      return fprintf(stderr, "%s\n", dlerror()), 1;
  return 0;
}
