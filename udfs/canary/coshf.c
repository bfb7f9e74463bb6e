#include "canary.h"

#include "cosh/coshf.c"

UDF_CANARY(coshf)
