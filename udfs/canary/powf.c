#include "canary.h"

#include "pow/powf.c"

UDF_CANARY_2(powf)
