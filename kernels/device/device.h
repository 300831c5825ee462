/* device.h - the layer between a kernel and the machine. A kernel includes this and has no other way to it. */
#ifndef ATTEST_DEVICE_DEVICE_H
#define ATTEST_DEVICE_DEVICE_H

#include "kernels/device/arith.h"
#include "kernels/device/bulk.h"
#include "kernels/device/cluster.h"
#include "kernels/device/convert.h"
#include "kernels/device/cp_async.h"
#include "kernels/device/functions.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/memory.h"
#include "kernels/device/mma.h"
#include "kernels/device/registers.h"
#include "kernels/device/thread.h"
#include "kernels/device/tma.h"
#include "kernels/device/wgmma.h"

#endif
