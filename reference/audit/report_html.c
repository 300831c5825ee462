/* report_html.c - the page: a template with the JSON of the audit and of its pictures inside. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/pictures.h"
#include "reference/audit/report.h"

static const char template[] =
#include "reference/audit/page.inc"
    ;

static void add_pictures(const struct audit *audit, json_t *root)
{
    json_t *implementations = json_object_get(root, "implementations");
    for (int i = 0; i < audit->num_answers; ++i) {
        json_t *tensors = json_object_get(json_array_get(implementations, (size_t)i), "tensors");
        for (int t = 0; t <= REF_DV; ++t) { /* tensors of rows */
            const struct judgement *j = &audit->judgements[i];
            if (!j->tensors[t].present || j->tensors[t].reason != NULL || audit->options->sample > 0) continue;
            json_object_set_new(json_object_get(tensors, ref_tensor_names[t]), "picture",
                                picture_json(audit, j, (enum ref_tensor)t));
        }
    }
}

bool report_write_html(const struct audit *audit, const char *path)
{
    static const char mark[] = "@DATA@";
    const char *split = strstr(template, mark);
    json_t *root = report_json(audit);
    add_pictures(audit, root);
    char *data = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(root);
    FILE *out = data != NULL ? fopen(path, "w") : NULL;
    if (out == NULL) {
        free(data);
        return false;
    }
    fwrite(template, 1, (size_t)(split - template), out);
    for (const char *c = data; *c != '\0'; ++c) { /* no "</script>" inside the script: < occurs in strings only */
        if (*c == '<') fputs("\\u003c", out);
        else fputc(*c, out);
    }
    fputs(split + strlen(mark), out);
    free(data);
    const bool written = ferror(out) == 0;
    return fclose(out) == 0 && written;
}
