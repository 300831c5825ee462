/* known.c - host code whose instructions and calls are known by hand, to test what counts them. Protocol of host.c. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ci/perf/wrapped.h"
#include "reference/parallel.h"

#define NOPS_100 __asm__(".rept 100\n nop\n .endr\n ret")
#define NOPS_3100 __asm__(".rept 3100\n nop\n .endr\n ret")

/* 101 and 3101 instructions, whatever the compiler. */
__attribute__((naked, noinline)) static void nops_100(void) { NOPS_100; }
__attribute__((naked, noinline)) static void nops_3100(void) { NOPS_3100; }

static char text[1 << 20];
static volatile size_t length;

/* A megabyte in the C library, whose instructions are not the project's. */
__attribute__((noinline)) static void of_the_library(void) { length = strlen(text); }

/* Sizes that no compiler knows. */
static volatile size_t three = 3, ten = 10;
static void *volatile memory;

static void asks(void)
{
    for (int i = 0; i < 3; ++i) free(memory), memory = malloc(100 * ten);
    memory = realloc(memory, 200 * ten);
    memset(memory, 1, 50 * ten);
    memcpy(memory, text, 40 * ten);
    memmove((char *)memory + three, memory, 30 * ten);
    free(memory);
    memory = aligned_alloc(64, 64 * ten);
    free(memory);
    memory = calloc(three, ten);
    free(memory);
}

static void iterate(void *context, int64_t index, int worker)
{
    (void)context, (void)index, (void)worker;
}

static void seven_alone(void) { ref_parallel(1, 7, iterate, NULL); }
static void seven_of_two(void) { ref_parallel(2, 7, iterate, NULL); }
static void one_of_two(void) { ref_parallel(2, 1, iterate, NULL); }
static void nine_and_two(void) { ref_parallel(3, 9, iterate, NULL), ref_parallel(3, 2, iterate, NULL); }

static const struct workload {
    const char *name;
    void (*run)(void);
    int threads;
} workloads[] = {{"nops_100", nops_100, 1},         {"nops_3100", nops_3100, 1},
                 {"of_the_library", of_the_library, 1}, {"asks", asks, 1},
                 {"seven_alone", seven_alone, 1},   {"seven_of_two", seven_of_two, 2},
                 {"one_of_two", one_of_two, 2},     {"nine_and_two", nine_and_two, 3}};
enum { NUM_WORKLOADS = sizeof workloads / sizeof *workloads };

__attribute__((noinline, noclone)) void measured(void (*run)(void));
void measured(void (*run)(void))
{
    run();
    length = 0; /* no tail call */
}

int main(int argc, char **argv)
{
    const bool counts_calls = argc == 3;
    const char *const name = argc > 1 ? argv[argc - 1] : "";
    memset(text, 'x', sizeof text - 1);
    if (strcmp(name, "--version") == 0) return printf("gcc %s\n", __VERSION__), 0;
    for (const struct workload *w = workloads; w < workloads + NUM_WORKLOADS; ++w) {
        if (strcmp(name, "--list") == 0) printf("%s 1 %d\n", w->name, w->threads);
        if (strcmp(name, w->name) != 0) continue;
        if (counts_calls) wrapped_begin();
        measured(w->run);
        wrapped_end();
        if (counts_calls) wrapped_print();
    }
    return 0;
}
