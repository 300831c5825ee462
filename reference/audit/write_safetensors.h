/* write_safetensors.h - for tests: tensors and metadata to a safetensors file. */
#ifndef ATTEST_AUDIT_WRITE_SAFETENSORS_H
#define ATTEST_AUDIT_WRITE_SAFETENSORS_H

#include "reference/audit/tensor_file.h"

/* `elements` is not read: the shape says it. Returns 0, or errno of what failed; EINVAL for a dtype
 * that safetensors has no name for or a name that is not UTF-8. */
int write_safetensors(const char *path, const struct tensor *tensors, int count,
                      const struct tensor_metadata *metadata, int num_metadata);

#endif
