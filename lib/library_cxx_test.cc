// library_cxx_test.cc - attest.h and the library from C++: C linkage, initialisers, a run. attest.h
// comes first, so that it needs nothing before it.
#include "lib/attest.h"

#include <cmath>
#include <cstdio>
#include <cstring>

static int failures;

static void check(bool good, const char *what) {
    if (!good) std::printf("FAILED: %s (%s)\n", what, attest_last_error());
    failures += !good;
}

int main() {
    attest_problem p = ATTEST_PROBLEM_INIT;
    check(std::isnan(p.softmax_scale) && p.window_left == -1 && p.struct_size == sizeof p, "the initialiser");
    attest_audit_options options = ATTEST_AUDIT_OPTIONS_INIT;
    check(options.struct_size == sizeof options && options.recipe == nullptr, "the options' initialiser");
    attest_plan *plan = nullptr;
    check(attest_plan_create(&p, &plan) != ATTEST_OK && plan == nullptr, "an empty problem is refused");
    check(std::strlen(attest_last_error()) > 0, "with a sentence");

    p.device = ATTEST_REFERENCE;
    p.batch = p.seqlen_q = p.seqlen_k = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = ATTEST_FP32;
    p.softmax_scale = 1;
    check(attest_plan_create(&p, &plan) == ATTEST_OK, "a plan");
    const float q = 1, k = 2, v = 3;
    float o = 0;
    attest_forward_args args = ATTEST_FORWARD_ARGS_INIT;
    args.q = &q, args.k = &k, args.v = &v, args.o = &o;
    check(attest_run_forward(plan, &args, nullptr, 0, nullptr) == ATTEST_OK && o == 3, "a run");
    attest_backward_args backward = ATTEST_BACKWARD_ARGS_INIT;
    check(attest_run_backward(plan, &backward, nullptr, 0, nullptr) == ATTEST_INVALID, "no backward in this plan");
    attest_plan_destroy(plan);
    check(attest_version() == ATTEST_VERSION, "the version");
    return failures != 0;
}
