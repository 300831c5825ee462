/* properties_list.h - the checks behind the table of properties.c, a file for each theme. */
#ifndef ATTEST_PROPTESTS_PROPERTIES_PROPERTIES_LIST_H
#define ATTEST_PROPTESTS_PROPERTIES_PROPERTIES_LIST_H

#include "proptests/properties/properties.h"

typedef int property_check(struct prop_case *c, const struct implementation *self, struct prop_context *context);

/* properties_value.c: beside the oracle. */
property_check check_within_bounds, check_empty_rows, check_parameters_matter, check_nan_is_felt;
/* properties_same.c: the same problem said or laid out otherwise. */
property_check check_strides, check_poison, check_mask_forms, check_causal_window, check_repeated_heads,
    check_one_by_one, check_queries_apart;
/* properties_changed.c: a changed problem whose answer is known. */
property_check check_shift, check_permuted_keys, check_scaled_values, check_scaled_gradient, check_infinite_softcap;
/* properties_merge.c */
property_check check_merge_laws, check_keys_merge, check_keys_backward;
/* properties_merge_backward.c */
property_check check_merge_backward;
/* properties_dropout.c */
property_check check_dropout_counter, check_dropout_seeds;
/* properties_slope.c */
property_check check_finite_differences;

#endif
