/* index.c - indices outside of their arrays.
 *
 * Kernels are compiled with g++ -fsanitize=bounds-strict: where the compiler knows an array's length - of a member of a
 * shared struct, of a thread's own array - it puts a comparison in front of the access, and calls this where it fails.
 * What lies behind the array is mostly another member, mapped and written, so that no other rule would see it. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sim/machine.h"

/* As the compiler lays them out. */
struct type_descriptor {
    uint16_t kind, info;
    char name[]; /* in quotes */
};

struct out_of_bounds {
    struct { const char *file; uint32_t line, column; } place;
    const struct type_descriptor *array, *index;
};

_Noreturn void __ubsan_handle_out_of_bounds_abort(const struct out_of_bounds *what, uintptr_t index);
_Noreturn void __ubsan_handle_out_of_bounds_abort(const struct out_of_bounds *what, uintptr_t index)
{
    const unsigned bits = 1u << (what->index->info >> 1);
    const long long value = bits <= 32 ? (int32_t)index : (int64_t)index;
    if (!sim_self) { /* host code beside a kernel */
        fprintf(stderr, "%s:%u: index %lld is outside of %s\n", what->place.file, what->place.line, value,
                what->array->name);
        abort();
    }
    sim_fail(sim_self, SIM_OUT_OF_BOUNDS, "index", SIM_SITE, NULL, "Index %lld is outside of %s.", value,
             what->array->name);
}
