/* kernels_test.c - every property that kernels can have, on the simulated GPU: through the library, and in the build
 * with polynomials. */
#include <stdio.h>

#include <criterion/criterion.h>

#include "proptests/kernels.h"

enum { SEED = 11, WORK = 1 << 13, CASES = 1000, POLYNOMIAL_CASES = 200 };

static void run(const struct kernel_implementation *kernels, int64_t cases)
{
    static struct kernel_tally tally;
    const struct kernel_run run = {.self = &kernels->implementation, .cases = cases, .seed = SEED, .work = WORK};
    kernels_run(&run, &tally, stdout);
    cr_expect(kernels_report(&tally, run.self, stdout));
}

Test(kernels, the_librarys)
{
    const struct kernel_implementation library = kernels_on_sim("sim", NULL, NULL);
    run(&library, CASES);
}

Test(kernels, with_polynomials)
{
    const struct kernel_implementation polynomial = kernels_on_sim("sim_poly", forward_fp32_sim_poly, merge_sim_poly);
    run(&polynomial, POLYNOMIAL_CASES);
}
