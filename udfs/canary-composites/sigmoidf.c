// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "sigmoid/sigmoidf.c"

UDF_CANARY(sigmoidf)
