/* known.c - host code whose instructions are known by hand, to test what callgrind counts: the protocol of host.c. */
#include <stdio.h>
#include <string.h>

#define NOPS_100 __asm__(".rept 100\n nop\n .endr\n ret")
#define NOPS_3100 __asm__(".rept 3100\n nop\n .endr\n ret")

/* 101 and 3101 instructions, whatever the compiler. */
__attribute__((naked, noinline)) static void nops_100(void) { NOPS_100; }
__attribute__((naked, noinline)) static void nops_3100(void) { NOPS_3100; }

static char text[1 << 20];
static volatile size_t length;

/* A megabyte in the C library, whose instructions are not the project's. */
__attribute__((noinline)) static void of_the_library(void) { length = strlen(text); }

static const struct {
    const char *name;
    void (*run)(void);
} workloads[] = {{"nops_100", nops_100}, {"nops_3100", nops_3100}, {"of_the_library", of_the_library}};
enum { NUM_WORKLOADS = sizeof workloads / sizeof *workloads };

__attribute__((noinline, noclone)) void measured(void (*run)(void));
void measured(void (*run)(void))
{
    run();
    length = 0; /* no tail call */
}

int main(int argc, char **argv)
{
    const char *const name = argc == 2 ? argv[1] : "";
    memset(text, 'x', sizeof text - 1);
    if (strcmp(name, "--version") == 0) return printf("gcc %s\n", __VERSION__), 0;
    for (int i = 0; i < NUM_WORKLOADS; ++i) {
        if (strcmp(name, "--list") == 0) printf("%s 1\n", workloads[i].name);
        if (strcmp(name, workloads[i].name) == 0) measured(workloads[i].run);
    }
    return 0;
}
