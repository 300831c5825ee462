/* atomic.c - what g++ -fsanitize=thread calls in place of atomic operations.
 *
 * kernels/device/ has none, so in a kernel they are refused. Host code in the same file may use them. */
#include "kernels/sim/machine.h"

static void refuse(const void *address, const void *site)
{
    if (sim_self)
        sim_fail(sim_self, SIM_BAD_OPERAND, "atomic operation", site, address,
                 "kernels/device/ has no atomic operations on memory, and the simulated GPU none either.");
}

#define ORDER __ATOMIC_SEQ_CST

#define FETCH(bits, type, operation)                                                                                  \
    type __tsan_atomic##bits##_fetch_##operation(volatile type *address, type value, int order);                      \
    type __tsan_atomic##bits##_fetch_##operation(volatile type *address, type value, int order)                       \
    {                                                                                                                 \
        (void)order;                                                                                                  \
        refuse((const void *)address, SIM_SITE);                                                                      \
        return __atomic_fetch_##operation(address, value, ORDER);                                                     \
    }

#define COMPARE(bits, type, strength, weak)                                                                           \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile type *address, type *expected, type value,         \
                                                          int order, int otherwise);                                  \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile type *address, type *expected, type value,         \
                                                          int order, int otherwise)                                   \
    {                                                                                                                 \
        (void)order, (void)otherwise;                                                                                 \
        refuse((const void *)address, SIM_SITE);                                                                      \
        return __atomic_compare_exchange_n(address, expected, value, weak, ORDER, ORDER);                             \
    }

#define ATOMICS(bits, type)                                                                                           \
    type __tsan_atomic##bits##_load(const volatile type *address, int order);                                         \
    type __tsan_atomic##bits##_load(const volatile type *address, int order)                                          \
    {                                                                                                                 \
        (void)order;                                                                                                  \
        refuse((const void *)address, SIM_SITE);                                                                      \
        return __atomic_load_n(address, ORDER);                                                                       \
    }                                                                                                                 \
    void __tsan_atomic##bits##_store(volatile type *address, type value, int order);                                  \
    void __tsan_atomic##bits##_store(volatile type *address, type value, int order)                                   \
    {                                                                                                                 \
        (void)order;                                                                                                  \
        refuse((const void *)address, SIM_SITE);                                                                      \
        __atomic_store_n(address, value, ORDER);                                                                      \
    }                                                                                                                 \
    type __tsan_atomic##bits##_exchange(volatile type *address, type value, int order);                               \
    type __tsan_atomic##bits##_exchange(volatile type *address, type value, int order)                                \
    {                                                                                                                 \
        (void)order;                                                                                                  \
        refuse((const void *)address, SIM_SITE);                                                                      \
        return __atomic_exchange_n(address, value, ORDER);                                                            \
    }                                                                                                                 \
    FETCH(bits, type, add)                                                                                            \
    FETCH(bits, type, sub)                                                                                            \
    FETCH(bits, type, and)                                                                                            \
    FETCH(bits, type, or)                                                                                             \
    FETCH(bits, type, xor)                                                                                            \
    COMPARE(bits, type, strong, false)                                                                                \
    COMPARE(bits, type, weak, true)

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    refuse(NULL, SIM_SITE);
    __atomic_thread_fence(ORDER);
}
