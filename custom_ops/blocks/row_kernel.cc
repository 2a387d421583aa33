#include "row_kernel.h"
