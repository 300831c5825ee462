/* judge_drift.h - what is left of the errors of a row beside a common lack whose size is not known: bounds.md
 * section 9.13. */
#ifndef ATTEST_REFERENCE_JUDGE_DRIFT_H
#define ATTEST_REFERENCE_JUDGE_DRIFT_H

/* Sums over a row of weighted squares: of errors, of two shapes, of a third one, and of their products. */
struct judge_drift {
    double errors, with[2], shapes[2], both;
    double third, third_with[3]; /* the errors, and the other shapes */
};
void judge_drift_add(struct judge_drift *d, double weight, double error, const double shapes[2], double third);

/* Least sum of squares of errors less a times a shape, b times the other one, a and b at least 0 and no more than 1
 * together, and c times the third, c anything. */
double judge_drift_left(const struct judge_drift *all);

#endif
