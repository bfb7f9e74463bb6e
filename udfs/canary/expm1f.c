#include "canary.h"

#include "expm1/expm1f.c"

UDF_CANARY(expm1f)
