#include "canary.h"

#include "sinh/sinhf.c"

UDF_CANARY(sinhf)
