// SPDX-License-Identifier: Apache-2.0
#include "canary.h"

#include "logsigmoid/logsigmoidf.c"

UDF_CANARY(logsigmoidf)
