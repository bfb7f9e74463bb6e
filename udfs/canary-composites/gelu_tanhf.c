// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "gelu_tanh/gelu_tanhf.c"

UDF_CANARY(gelu_tanhf)
