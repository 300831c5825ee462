/* memory.h - shared memory of a CTA, and accesses of 16 bytes. Everything else is an ordinary load or store. */
#ifndef ATTEST_DEVICE_MEMORY_H
#define ATTEST_DEVICE_MEMORY_H

#include "kernels/device/machine.h"

/* STATIC_SHARED(type, name); one object for all threads of the CTA, uninitialised, aligned as its type is: an array
 * by a typedef or in a struct. At most 48 KB in all. */
#if ON_CHIP
#define STATIC_SHARED(type, name) __shared__ type name
#else
#define STATIC_SHARED(type, name)       \
    static char name##_tag;             \
    type &name = *static_cast<type *>(sim_shared_static(&name##_tag, sizeof(type), alignof(type)))
#endif

/* DYNAMIC_SHARED(name, align); unsigned char *name: the bytes that the launch asked for, after the static ones.
 * `align` a number in figures, a power of two up to 1024. */
#if ON_CHIP
#define DYNAMIC_SHARED(name, align)                                           \
    extern __shared__ __align__(align) unsigned char dynamic_shared_##align[]; \
    unsigned char *const name = dynamic_shared_##align
#else
#define DYNAMIC_SHARED(name, align) unsigned char *const name = static_cast<unsigned char *>(sim_shared_dynamic(align))
#endif

/* Dynamic shared memory in parts of so many bytes, multiples of 16, one behind the other; the last may be the rest of
 * what the launch asked for. The simulator lays red zones between them, so that an index that leaves its part does not
 * arrive in the next one. */
constexpr unsigned SHARED_REST = 0xffffffff;

template <int PARTS>
struct shared_cut {
    unsigned char *at[PARTS];
};

template <typename... Bytes>
INLINE shared_cut<sizeof...(Bytes)> cut_shared(unsigned char *shared, Bytes... bytes)
{
    constexpr int PARTS = sizeof...(Bytes);
    const unsigned sizes[PARTS] = {static_cast<unsigned>(bytes)...};
    shared_cut<PARTS> out;
#if ON_CHIP
    UNROLL for (int i = 0; i < PARTS; ++i) out.at[i] = i == 0 ? shared : out.at[i - 1] + sizes[i - 1];
#else
    sim_shared_cut(shared, sizes, PARTS, out.at);
#endif
    return out;
}

/* Without parts again: something else takes their place from the first byte on. Pointers to parts stay valid. */
INLINE unsigned char *join_shared(unsigned char *shared)
{
#if !ON_CHIP
    sim_shared_cut(shared, nullptr, 0, nullptr);
#endif
    return shared;
}

/* Ends what lies there: a stage of a ring that its consumers have released, a tile of which the next load may fill only
 * a part. One thread says so, ordered as a write of it would be. In the simulator nobody may read these bytes before
 * they are written again: what is stale is right by chance, until it holds a NaN. */
INLINE void expire_shared(void *shared, unsigned bytes)
{
#if ON_CHIP
    (void)shared, (void)bytes;
#else
    sim_shared_expire(shared, bytes);
#endif
}

#if ON_CHIP
typedef uint4 sixteen_bytes;
#else
typedef uint32_t sixteen_bytes __attribute__((vector_size(16), may_alias));
#endif

/* Four numbers, as kernels load and store them at once. */
struct alignas(16) quad {
    float at[4];
};

/* One type's bytes as another's, both of 16. */
template <typename T, typename S>
INLINE T same_16(const S &from)
{
    static_assert(sizeof(T) == 16 && sizeof(S) == 16, "16 bytes");
    T to;
    __builtin_memcpy(&to, &from, 16);
    return to;
}

/* "ld", "st": .v4; sm_80. 16 bytes at once of any kind of memory; addresses are multiples of 16. */
template <typename T>
INLINE T load_16(const void *address)
{
#if ON_CHIP
    const sixteen_bytes v = *static_cast<const sixteen_bytes *>(address); /* copied from there, it would be bytes */
#else
    sixteen_bytes v;
    sim_load_16(&v, address);
#endif
    return same_16<T>(v);
}

template <typename T>
INLINE void store_16(void *address, const T &value)
{
    const sixteen_bytes v = same_16<sixteen_bytes>(value);
#if ON_CHIP
    *static_cast<sixteen_bytes *>(address) = v;
#else
    sim_store_16(address, &v);
#endif
}

/* The same of global memory. Streaming (.cs) says that the bytes are used once: the caches drop them first. */
template <typename T>
INLINE T load_global_16(const void *address)
{
    sixteen_bytes v;
#if ON_CHIP
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(__cvta_generic_to_global(address)) : "memory");
#else
    sim_load_global_16(&v, address);
#endif
    return same_16<T>(v);
}

template <typename T>
INLINE T load_global_16_streaming(const void *address)
{
    sixteen_bytes v;
#if ON_CHIP
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(__cvta_generic_to_global(address)) : "memory");
#else
    sim_load_global_16(&v, address);
#endif
    return same_16<T>(v);
}

template <typename T>
INLINE void store_global_16(void *address, const T &value)
{
    const sixteen_bytes v = same_16<sixteen_bytes>(value);
#if ON_CHIP
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(address)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
    sim_store_global_16(address, &v);
#endif
}

template <typename T>
INLINE void store_global_16_streaming(void *address, const T &value)
{
    const sixteen_bytes v = same_16<sixteen_bytes>(value);
#if ON_CHIP
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(address)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
    sim_store_global_16(address, &v);
#endif
}

#endif
