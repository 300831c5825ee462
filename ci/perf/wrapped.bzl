"""How a program is linked whose calls wrapped.c, or runtime.c, counts."""

_ROUTINES = [
    "malloc",
    "calloc",
    "realloc",
    "aligned_alloc",
    "memset",
    "memcpy",
    "memmove",
    "__memset_chk",
    "__memcpy_chk",
    "__memmove_chk",
    "pthread_create",
    "ref_parallel",
]

WRAPPED = ["-Wl,--wrap=" + routine for routine in _ROUTINES]

_CUDA = [
    "cudaDeviceGetAttribute",
    "cudaDeviceSynchronize",
    "cudaFree",
    "cudaFuncGetAttributes",
    "cudaFuncSetAttribute",
    "cudaGetDevice",
    "cudaGetDriverEntryPointByVersion",
    "cudaGetLastError",
    "cudaLaunchKernelExC",
    "cudaMalloc",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaSetDevice",
    "cudaStreamSynchronize",
]

RUNTIME = ["-Wl,--wrap=" + function for function in _CUDA]
