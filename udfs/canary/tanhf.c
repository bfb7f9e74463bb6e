// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "tanh/tanhf.c"

UDF_CANARY(tanhf)
