/* machine_cuda.c - the GPU's memory. */
#include "kernels/cuda.h"
#include "proptests/cases/cuda_memory.h"
#include "proptests/cases/machine.h"

const struct machine machine_of_cuda = {ATTEST_CUDA,  cuda_allocate, cuda_release,   cuda_fill,
                                        cuda_copy_in, cuda_copy_out, cuda_error_text};
