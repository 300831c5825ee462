/* main.c - the audit command: it judges files, which reference/audit does, or asks properties of a plug-in. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proptests/plugin/plugin.h"
#include "reference/audit/audit.h"

int main(int argc, char **argv)
{
    /* `bazel run` starts programs elsewhere; paths are meant from where the user is. */
    const char *directory = getenv("BUILD_WORKING_DIRECTORY");
    if (directory != NULL && chdir(directory) != 0) {
        fprintf(stderr, "audit: %s: %s\n", directory, strerror(errno));
        return AUDIT_EXIT_UNUSABLE;
    }
    struct options options;
    options_parse(argc, argv, &options);
    const int status = options.asks_properties ? plugin_audit(&options) : audit_files(&options);
    free(options.inputs);
    free(options.results);
    return status;
}
