#include "canary.h"

#include "asinh/asinhf.c"

UDF_CANARY(asinhf)
