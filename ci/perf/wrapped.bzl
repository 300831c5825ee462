"""How a program is linked whose calls wrapped.c counts."""

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
