/* unit_questions.h - single sets of operands, each of which tells one thing about a tensor core. */
#ifndef ATTEST_DEVICE_UNIT_QUESTIONS_H
#define ATTEST_DEVICE_UNIT_QUESTIONS_H

#include "kernels/sim/calls.h"

enum { UNIT_MAX_QUESTIONS = 120, UNIT_K = 16 };

struct unit_question {
    char text[160]; /* what is added, and which answer means what */
    float a[UNIT_K], b[UNIT_K], c; /* numbers of the format */
    bool no_accumulator;
};

/* Those that can be asked in this format; how many. */
int unit_questions(enum sim_format format, struct unit_question questions[UNIT_MAX_QUESTIONS]);

/* A number of the format from an fp32 that it holds exactly; of NaN what fits; for tf32 all bits. */
uint32_t unit_encode(enum sim_format format, float value);

#endif
