/* judge.c - is a wrong kernel rejected? For mutate.py.
 *
 *     judge MUTANT.so SECONDS MOST
 *
 * The library holds launchers of kernels, by the names of kernels/registry.h on the simulated GPU; all others are this
 * program's. Prints one line. Exit status 0: rejected, or a round of cases takes more than MOST seconds of processor
 * time, if MOST is not 0; 1: not in one round, nor within SECONDS of processor time; 2: no such library, or no case
 * reaches the kernel. */
#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "proptests/kernel_mutants/kernels_reject.h"

enum { REJECTED, SURVIVES, ERROR, CASES = 4 };

/* A crash is a rejection, and so is what does not end. */
static void on_signal(int signal)
{
    const char *const said = signal == SIGPROF ? "rejected: it does not end\n" : "rejected by a crash\n";
    const ssize_t written = write(STDOUT_FILENO, said, strlen(said));
    _exit(written > 0 ? REJECTED : ERROR);
}

static int take(struct kernel_launchers *launchers, void *library, const char *kernel)
{
    char name[80];
    snprintf(name, sizeof name, "%s_sim", kernel);
    kernel_launcher *launcher;
    *(void **)&launcher = dlsym(library, name);
    return launcher != NULL && kernels_replace(launchers, kernel, launcher);
}

int main(int argc, char **argv)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF};
    struct kernel_launchers launchers = {{NULL}, {NULL}, NULL, NULL};
    void *const library = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int taken = 0;
    if (library == NULL) return printf("%s\n", argc == 4 ? dlerror() : "usage: judge MUTANT.so SECONDS MOST"), ERROR;
    for (int i = 0; forward_kernels[i].name != NULL; ++i) taken += take(&launchers, library, forward_kernels[i].name);
    for (int i = 0; backward_kernels[i].name != NULL; ++i) taken += take(&launchers, library, backward_kernels[i].name);
    taken += take(&launchers, library, merge_kernel.name) + take(&launchers, library, merge_backward_kernel.name);
    if (taken == 0) return printf("%s holds no launcher\n", argv[1]), ERROR;
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; ++i) signal(crashes[i], on_signal);

    const clock_t end = clock() + (clock_t)(atof(argv[2]) * CLOCKS_PER_SEC);
    for (int64_t first = 0; first == 0 || clock() < end; first += CASES) {
        struct kernels_rejection by;
        /* Of processor time, as the machine may have other work. */
        setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = atoi(argv[3])}, NULL);
        const struct kernels_asked asked = {.first_case = first, .cases = CASES};
        if (!kernels_reject("mutant", &launchers, &asked, &by)) continue;
        by.message[strcspn(by.message, "\n")] = '\0';
        printf("rejected by %s, case %" PRId64 ": %.300s\n", by.property, by.number, by.message);
        return REJECTED;
    }
    if (kernels_answered() == 0) return printf("no case reaches it\n"), ERROR;
    printf("SURVIVES\n");
    return SURVIVES;
}
