#include "canary.h"

#include "erfc/erfcf.c"

UDF_CANARY(erfcf)
