#include "canary.h"

#include "exp2/exp2f.c"

UDF_CANARY(exp2f)
