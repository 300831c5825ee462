/* wgmma_operands.h - the operand lists of wgmma for every N. Included by wgmma.h.
 *
 * d[0 .. N / 2 - 1] are operands %0 .. of the instruction, nine more follow. Operands have no names in nvcc's asm and
 * the preprocessor does not count, so here is every number, once. */
#ifndef ATTEST_DEVICE_WGMMA_OPERANDS_H
#define ATTEST_DEVICE_WGMMA_OPERANDS_H

#include "kernels/device/machine.h"

#if ON_CHIP

INLINE void wgmma_fence_register(float &r) { asm volatile("" : "+f"(r) :: "memory"); }
INLINE void wgmma_fence_register(uint32_t &r) { asm volatile("" : "+r"(r) :: "memory"); }

/* One instruction: TYPE "f16" or "bf16", then the numbers of the operands after d. */
#define DEVICE_WGMMA_SHARED_A(TYPE, N, A, B, ACCUMULATE, NEGATED_A, NEGATED_B, TRANSPOSED_A, TRANSPOSED_B, ...)        \
    ASM_SM_90("{\n\t"                                                                                                  \
              ".reg .pred p;\n\t"                                                                                      \
              "setp.ne.b32 p, %" #ACCUMULATE ", 0;\n\t"                                                                \
              "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" DEVICE_WGMMA_TEXT_##N "}, "         \
              "%" #A ", %" #B ", p, %" #NEGATED_A ", %" #NEGATED_B ", %" #TRANSPOSED_A ", %" #TRANSPOSED_B ";\n\t"     \
              "}"                                                                                                      \
              : DEVICE_WGMMA_D_##N                                                                                     \
              : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(NEGATE_A ? -1 : 1), "n"(NEGATE_B ? -1 : 1),     \
                "n"(TRANSPOSE_A ? 1 : 0), "n"(TRANSPOSE_B ? 1 : 0))

#define DEVICE_WGMMA_REGISTER_A(TYPE, N, A0, A1, A2, A3, B, ACCUMULATE, NEGATED_A, NEGATED_B, TRANSPOSED_B)            \
    ASM_SM_90("{\n\t"                                                                                                  \
              ".reg .pred p;\n\t"                                                                                      \
              "setp.ne.b32 p, %" #ACCUMULATE ", 0;\n\t"                                                                \
              "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" DEVICE_WGMMA_TEXT_##N "}, "         \
              "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, %" #NEGATED_A ", %" #NEGATED_B                    \
              ", %" #TRANSPOSED_B ";\n\t"                                                                              \
              "}"                                                                                                      \
              : DEVICE_WGMMA_D_##N                                                                                     \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),                 \
                "n"(NEGATE_A ? -1 : 1), "n"(NEGATE_B ? -1 : 1), "n"(TRANSPOSE_B ? 1 : 0))

/* In a template of N: the one instruction that it asks for. */
#define DEVICE_WGMMA_EACH_N(FORM, TYPE) \
    if constexpr (N == 8) FORM(TYPE, 8, 4, 5, 6, 7, 8, 9, 10, 11, 12); \
    if constexpr (N == 16) FORM(TYPE, 16, 8, 9, 10, 11, 12, 13, 14, 15, 16); \
    if constexpr (N == 24) FORM(TYPE, 24, 12, 13, 14, 15, 16, 17, 18, 19, 20); \
    if constexpr (N == 32) FORM(TYPE, 32, 16, 17, 18, 19, 20, 21, 22, 23, 24); \
    if constexpr (N == 40) FORM(TYPE, 40, 20, 21, 22, 23, 24, 25, 26, 27, 28); \
    if constexpr (N == 48) FORM(TYPE, 48, 24, 25, 26, 27, 28, 29, 30, 31, 32); \
    if constexpr (N == 56) FORM(TYPE, 56, 28, 29, 30, 31, 32, 33, 34, 35, 36); \
    if constexpr (N == 64) FORM(TYPE, 64, 32, 33, 34, 35, 36, 37, 38, 39, 40); \
    if constexpr (N == 72) FORM(TYPE, 72, 36, 37, 38, 39, 40, 41, 42, 43, 44); \
    if constexpr (N == 80) FORM(TYPE, 80, 40, 41, 42, 43, 44, 45, 46, 47, 48); \
    if constexpr (N == 88) FORM(TYPE, 88, 44, 45, 46, 47, 48, 49, 50, 51, 52); \
    if constexpr (N == 96) FORM(TYPE, 96, 48, 49, 50, 51, 52, 53, 54, 55, 56); \
    if constexpr (N == 104) FORM(TYPE, 104, 52, 53, 54, 55, 56, 57, 58, 59, 60); \
    if constexpr (N == 112) FORM(TYPE, 112, 56, 57, 58, 59, 60, 61, 62, 63, 64); \
    if constexpr (N == 120) FORM(TYPE, 120, 60, 61, 62, 63, 64, 65, 66, 67, 68); \
    if constexpr (N == 128) FORM(TYPE, 128, 64, 65, 66, 67, 68, 69, 70, 71, 72); \
    if constexpr (N == 136) FORM(TYPE, 136, 68, 69, 70, 71, 72, 73, 74, 75, 76); \
    if constexpr (N == 144) FORM(TYPE, 144, 72, 73, 74, 75, 76, 77, 78, 79, 80); \
    if constexpr (N == 152) FORM(TYPE, 152, 76, 77, 78, 79, 80, 81, 82, 83, 84); \
    if constexpr (N == 160) FORM(TYPE, 160, 80, 81, 82, 83, 84, 85, 86, 87, 88); \
    if constexpr (N == 168) FORM(TYPE, 168, 84, 85, 86, 87, 88, 89, 90, 91, 92); \
    if constexpr (N == 176) FORM(TYPE, 176, 88, 89, 90, 91, 92, 93, 94, 95, 96); \
    if constexpr (N == 184) FORM(TYPE, 184, 92, 93, 94, 95, 96, 97, 98, 99, 100); \
    if constexpr (N == 192) FORM(TYPE, 192, 96, 97, 98, 99, 100, 101, 102, 103, 104); \
    if constexpr (N == 200) FORM(TYPE, 200, 100, 101, 102, 103, 104, 105, 106, 107, 108); \
    if constexpr (N == 208) FORM(TYPE, 208, 104, 105, 106, 107, 108, 109, 110, 111, 112); \
    if constexpr (N == 216) FORM(TYPE, 216, 108, 109, 110, 111, 112, 113, 114, 115, 116); \
    if constexpr (N == 224) FORM(TYPE, 224, 112, 113, 114, 115, 116, 117, 118, 119, 120); \
    if constexpr (N == 232) FORM(TYPE, 232, 116, 117, 118, 119, 120, 121, 122, 123, 124); \
    if constexpr (N == 240) FORM(TYPE, 240, 120, 121, 122, 123, 124, 125, 126, 127, 128); \
    if constexpr (N == 248) FORM(TYPE, 248, 124, 125, 126, 127, 128, 129, 130, 131, 132); \
    if constexpr (N == 256) FORM(TYPE, 256, 128, 129, 130, 131, 132, 133, 134, 135, 136);

#define DEVICE_WGMMA_D_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define DEVICE_WGMMA_D_16 DEVICE_WGMMA_D_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define DEVICE_WGMMA_D_24 DEVICE_WGMMA_D_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define DEVICE_WGMMA_D_32 DEVICE_WGMMA_D_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define DEVICE_WGMMA_D_40 DEVICE_WGMMA_D_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define DEVICE_WGMMA_D_48 DEVICE_WGMMA_D_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define DEVICE_WGMMA_D_56 DEVICE_WGMMA_D_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define DEVICE_WGMMA_D_64 DEVICE_WGMMA_D_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define DEVICE_WGMMA_D_72 DEVICE_WGMMA_D_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define DEVICE_WGMMA_D_80 DEVICE_WGMMA_D_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define DEVICE_WGMMA_D_88 DEVICE_WGMMA_D_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define DEVICE_WGMMA_D_96 DEVICE_WGMMA_D_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define DEVICE_WGMMA_D_104 DEVICE_WGMMA_D_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define DEVICE_WGMMA_D_112 DEVICE_WGMMA_D_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define DEVICE_WGMMA_D_120 DEVICE_WGMMA_D_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define DEVICE_WGMMA_D_128 DEVICE_WGMMA_D_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define DEVICE_WGMMA_D_136 DEVICE_WGMMA_D_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define DEVICE_WGMMA_D_144 DEVICE_WGMMA_D_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define DEVICE_WGMMA_D_152 DEVICE_WGMMA_D_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define DEVICE_WGMMA_D_160 DEVICE_WGMMA_D_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define DEVICE_WGMMA_D_168 DEVICE_WGMMA_D_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define DEVICE_WGMMA_D_176 DEVICE_WGMMA_D_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define DEVICE_WGMMA_D_184 DEVICE_WGMMA_D_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define DEVICE_WGMMA_D_192 DEVICE_WGMMA_D_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define DEVICE_WGMMA_D_200 DEVICE_WGMMA_D_192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define DEVICE_WGMMA_D_208 DEVICE_WGMMA_D_200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define DEVICE_WGMMA_D_216 DEVICE_WGMMA_D_208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define DEVICE_WGMMA_D_224 DEVICE_WGMMA_D_216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define DEVICE_WGMMA_D_232 DEVICE_WGMMA_D_224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define DEVICE_WGMMA_D_240 DEVICE_WGMMA_D_232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define DEVICE_WGMMA_D_248 DEVICE_WGMMA_D_240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define DEVICE_WGMMA_D_256 DEVICE_WGMMA_D_248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define DEVICE_WGMMA_TEXT_8 "%0, %1, %2, %3"
#define DEVICE_WGMMA_TEXT_16 DEVICE_WGMMA_TEXT_8 ", %4, %5, %6, %7"
#define DEVICE_WGMMA_TEXT_24 DEVICE_WGMMA_TEXT_16 ", %8, %9, %10, %11"
#define DEVICE_WGMMA_TEXT_32 DEVICE_WGMMA_TEXT_24 ", %12, %13, %14, %15"
#define DEVICE_WGMMA_TEXT_40 DEVICE_WGMMA_TEXT_32 ", %16, %17, %18, %19"
#define DEVICE_WGMMA_TEXT_48 DEVICE_WGMMA_TEXT_40 ", %20, %21, %22, %23"
#define DEVICE_WGMMA_TEXT_56 DEVICE_WGMMA_TEXT_48 ", %24, %25, %26, %27"
#define DEVICE_WGMMA_TEXT_64 DEVICE_WGMMA_TEXT_56 ", %28, %29, %30, %31"
#define DEVICE_WGMMA_TEXT_72 DEVICE_WGMMA_TEXT_64 ", %32, %33, %34, %35"
#define DEVICE_WGMMA_TEXT_80 DEVICE_WGMMA_TEXT_72 ", %36, %37, %38, %39"
#define DEVICE_WGMMA_TEXT_88 DEVICE_WGMMA_TEXT_80 ", %40, %41, %42, %43"
#define DEVICE_WGMMA_TEXT_96 DEVICE_WGMMA_TEXT_88 ", %44, %45, %46, %47"
#define DEVICE_WGMMA_TEXT_104 DEVICE_WGMMA_TEXT_96 ", %48, %49, %50, %51"
#define DEVICE_WGMMA_TEXT_112 DEVICE_WGMMA_TEXT_104 ", %52, %53, %54, %55"
#define DEVICE_WGMMA_TEXT_120 DEVICE_WGMMA_TEXT_112 ", %56, %57, %58, %59"
#define DEVICE_WGMMA_TEXT_128 DEVICE_WGMMA_TEXT_120 ", %60, %61, %62, %63"
#define DEVICE_WGMMA_TEXT_136 DEVICE_WGMMA_TEXT_128 ", %64, %65, %66, %67"
#define DEVICE_WGMMA_TEXT_144 DEVICE_WGMMA_TEXT_136 ", %68, %69, %70, %71"
#define DEVICE_WGMMA_TEXT_152 DEVICE_WGMMA_TEXT_144 ", %72, %73, %74, %75"
#define DEVICE_WGMMA_TEXT_160 DEVICE_WGMMA_TEXT_152 ", %76, %77, %78, %79"
#define DEVICE_WGMMA_TEXT_168 DEVICE_WGMMA_TEXT_160 ", %80, %81, %82, %83"
#define DEVICE_WGMMA_TEXT_176 DEVICE_WGMMA_TEXT_168 ", %84, %85, %86, %87"
#define DEVICE_WGMMA_TEXT_184 DEVICE_WGMMA_TEXT_176 ", %88, %89, %90, %91"
#define DEVICE_WGMMA_TEXT_192 DEVICE_WGMMA_TEXT_184 ", %92, %93, %94, %95"
#define DEVICE_WGMMA_TEXT_200 DEVICE_WGMMA_TEXT_192 ", %96, %97, %98, %99"
#define DEVICE_WGMMA_TEXT_208 DEVICE_WGMMA_TEXT_200 ", %100, %101, %102, %103"
#define DEVICE_WGMMA_TEXT_216 DEVICE_WGMMA_TEXT_208 ", %104, %105, %106, %107"
#define DEVICE_WGMMA_TEXT_224 DEVICE_WGMMA_TEXT_216 ", %108, %109, %110, %111"
#define DEVICE_WGMMA_TEXT_232 DEVICE_WGMMA_TEXT_224 ", %112, %113, %114, %115"
#define DEVICE_WGMMA_TEXT_240 DEVICE_WGMMA_TEXT_232 ", %116, %117, %118, %119"
#define DEVICE_WGMMA_TEXT_248 DEVICE_WGMMA_TEXT_240 ", %120, %121, %122, %123"
#define DEVICE_WGMMA_TEXT_256 DEVICE_WGMMA_TEXT_248 ", %124, %125, %126, %127"

#endif

#endif
