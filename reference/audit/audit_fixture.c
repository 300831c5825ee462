#include "reference/audit/audit_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reference/audit/notes.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* ---- problems ---- */

struct fixture fixture_new(int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q, int64_t heads_kv)
{
    struct fixture f = {.problem = ATTEST_PROBLEM_INIT, .args = ATTEST_BACKWARD_ARGS_INIT};
    struct attest_problem *p = &f.problem;
    p->device = ATTEST_REFERENCE;
    p->batch = 1;
    p->seqlen_q = seqlen_q, p->seqlen_k = seqlen_k;
    p->num_heads_q = heads_q, p->num_heads_kv = heads_kv;
    p->head_dim = p->head_dim_v = 16;
    p->softmax_scale = 0.25f;
    p->q.dtype = ATTEST_BF16;
    return f;
}

static struct attest_tensor packed(int32_t dtype, int64_t heads, int64_t dim)
{
    return (struct attest_tensor){.dtype = dtype, .seqlen = heads * dim, .head = dim};
}

/* A generator of its own, so that tests draw the same numbers everywhere. */
static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) / (double)(1u << 31) * 4 - 2;
}

static void *draw_tensor(int32_t dtype, int64_t size, uint64_t *state)
{
    void *data = allocate((size_t)size, ref_dtype_bytes(dtype));
    for (int64_t i = 0; i < size; ++i) ref_store(dtype, data, i, draw(state));
    return data;
}

static void lay_out(struct attest_problem *p)
{
    const int32_t dtype = p->q.dtype;
    p->q = p->dq = packed(dtype, p->num_heads_q, p->head_dim);
    p->k = p->dk = packed(dtype, p->num_heads_kv, p->head_dim);
    p->v = p->dv = packed(dtype, p->num_heads_kv, p->head_dim_v);
    p->o = p->dout = packed(dtype, p->num_heads_q, p->head_dim_v);
    p->lse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1, .head = p->seqlen_q};
}

static void store_all(int32_t dtype, void *data, const double *values, int64_t size)
{
    for (int64_t i = 0; i < size; ++i) ref_store(dtype, data, i, values[i]);
}

void fixture_answer(struct fixture *f)
{
    const struct attest_problem *p = &f->problem;
    const int64_t rows_q = p->seqlen_q * p->num_heads_q, rows_k = p->seqlen_k * p->num_heads_kv;
    const int64_t dim = p->head_dim, dim_v = p->head_dim_v;
    double *o = allocate((size_t)(rows_q * dim_v), sizeof *o), *lse = allocate((size_t)rows_q, sizeof *lse);
    double *dq = allocate((size_t)(rows_q * dim), sizeof *dq), *dk = allocate((size_t)(rows_k * dim), sizeof *dk);
    double *dv = allocate((size_t)(rows_k * dim_v), sizeof *dv);
    ref_forward(p, &f->args.forward, &(struct ref_forward){o, lse}, 1);
    ref_backward(p, &f->args, NULL, &(struct ref_backward){.dq = dq, .dk = dk, .dv = dv}, 1);
    store_all(p->q.dtype, f->o, o, rows_q * dim_v);
    store_all(p->q.dtype, f->dq, dq, rows_q * dim);
    store_all(p->q.dtype, f->dk, dk, rows_k * dim);
    store_all(p->q.dtype, f->dv, dv, rows_k * dim_v);
    for (int64_t r = 0; r < rows_q; ++r) /* [rows][heads] to [heads][rows] */
        ((float *)f->lse)[r % p->num_heads_q * p->seqlen_q + r / p->num_heads_q] = (float)lse[r];
    free(o), free(lse), free(dq), free(dk), free(dv);
}

void fixture_make(struct fixture *f)
{
    struct attest_problem *p = &f->problem;
    uint64_t state = 1;
    lay_out(p);
    const int32_t dtype = p->q.dtype;
    const int64_t rows_q = p->seqlen_q * p->num_heads_q, rows_k = p->seqlen_k * p->num_heads_kv;
    f->args.forward.q = f->q = draw_tensor(dtype, rows_q * p->head_dim, &state);
    f->args.forward.k = f->k = draw_tensor(dtype, rows_k * p->head_dim, &state);
    f->args.forward.v = f->v = draw_tensor(dtype, rows_k * p->head_dim_v, &state);
    f->args.dout = f->dout = draw_tensor(dtype, rows_q * p->head_dim_v, &state);
    f->o = draw_tensor(dtype, rows_q * p->head_dim_v, &state);
    f->lse = draw_tensor(ATTEST_FP32, rows_q, &state);
    f->dq = draw_tensor(dtype, rows_q * p->head_dim, &state);
    f->dk = draw_tensor(dtype, rows_k * p->head_dim, &state);
    f->dv = draw_tensor(dtype, rows_k * p->head_dim_v, &state);
    f->slopes = allocate((size_t)p->num_heads_q, sizeof *f->slopes);
    for (int64_t h = 0; h < p->num_heads_q; ++h) f->slopes[h] = 0.5f / (float)(1 << h);
    f->args.forward.alibi_slopes = f->slopes;
    fixture_answer(f);
}

void fixture_free(struct fixture *f)
{
    void *const all[] = {f->q, f->k, f->v, f->dout, f->o, f->lse, f->dq, f->dk, f->dv, f->slopes};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
}

/* ---- other conventions ---- */

static double deviant_score(const struct fixture *f, enum alibi_form form, double s, double slope, double i, double j)
{
    const struct attest_problem *p = &f->problem;
    const double cap = p->softcap, diag = (double)(p->seqlen_k - p->seqlen_q);
    const double t = cap > 0 ? cap * tanh(s / cap) : s;
    switch (form) {
    case ALIBI_TOP_LEFT: return t - slope * fabs(i - j);
    case ALIBI_COLUMN: return t + slope * j;
    case ALIBI_SIGNED: return t + slope * (j - i);
    case ALIBI_INSIDE: return cap * tanh((s - slope * fabs(i + diag - j)) / cap);
    case ALIBI_INSIDE_SIGNED: return cap * tanh((s + slope * (j - i)) / cap);
    default: return t - slope * fabs(i + diag - j);
    }
}

static void deviant_row(struct fixture *f, enum alibi_form form, int64_t diag, int64_t h, int64_t i, double *x)
{
    const struct attest_problem *p = &f->problem;
    const int64_t dim = p->head_dim, h_kv = h / (p->num_heads_q / p->num_heads_kv);
    const int32_t dtype = p->q.dtype;
    double sum = 0, o[256] = {0};
    for (int64_t j = 0; j < p->seqlen_k; ++j) {
        double s = 0;
        for (int64_t c = 0; c < dim; ++c)
            s += ref_load(dtype, f->q, (i * p->num_heads_q + h) * dim + c) *
                 ref_load(dtype, f->k, (j * p->num_heads_kv + h_kv) * dim + c);
        const bool hidden = (p->window_right >= 0 && j > i + diag + p->window_right) ||
                            (p->window_left >= 0 && j < i + diag - p->window_left);
        const double slope = p->has_alibi ? f->slopes[h] : 0;
        x[j] = hidden ? -INFINITY
                      : deviant_score(f, form, s * (double)p->softmax_scale, slope, (double)i, (double)j);
        sum += exp(x[j]);
    }
    for (int64_t j = 0; j < p->seqlen_k; ++j)
        for (int64_t c = 0; c < p->head_dim_v && sum > 0; ++c)
            o[c] += exp(x[j]) / sum * ref_load(dtype, f->v, (j * p->num_heads_kv + h_kv) * p->head_dim_v + c);
    for (int64_t c = 0; c < p->head_dim_v; ++c)
        ref_store(dtype, f->o, (i * p->num_heads_q + h) * p->head_dim_v + c, o[c]);
    ((float *)f->lse)[h * p->seqlen_q + i] = (float)log(sum);
}

void fixture_deviate(struct fixture *f, enum alibi_form form, int64_t diag)
{
    double *x = allocate((size_t)f->problem.seqlen_k, sizeof *x);
    for (int64_t h = 0; h < f->problem.num_heads_q; ++h)
        for (int64_t i = 0; i < f->problem.seqlen_q; ++i) deviant_row(f, form, diag, h, i, x);
    free(x);
}

/* ---- files ---- */

static const char *folder(void)
{
    static char path[512];
    if (path[0] == '\0') {
        const char *base = getenv("TEST_TMPDIR");
        snprintf(path, sizeof path, "%s/audit-XXXXXX", base != NULL ? base : "/tmp");
        cr_assert_not_null(mkdtemp(path));
    }
    return path;
}

const char *path_in_folder(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    return path;
}

static struct tensor rows_tensor(const char *name, int32_t dtype, int64_t rows, int64_t heads, int64_t dim, void *data)
{
    return (struct tensor){.name = name, .dtype = dtype, .ndim = 3, .shape = {rows, heads, dim}, .data = data};
}

void fixture_write_inputs(const struct fixture *f, const char *path)
{
    const struct attest_problem *p = &f->problem;
    const int32_t dtype = p->q.dtype;
    const struct tensor tensors[] = {
        rows_tensor("q", dtype, p->seqlen_q, p->num_heads_q, p->head_dim, f->q),
        rows_tensor("k", dtype, p->seqlen_k, p->num_heads_kv, p->head_dim, f->k),
        rows_tensor("v", dtype, p->seqlen_k, p->num_heads_kv, p->head_dim_v, f->v),
        rows_tensor("dout", dtype, p->seqlen_q, p->num_heads_q, p->head_dim_v, f->dout),
    };
    const struct tensor_metadata metadata[] = {{"softmax_scale", "0.25"}};
    cr_assert_eq(write_safetensors(path_in_folder(path), tensors, 4, metadata, 1), 0);
}

void fixture_write_results(const struct fixture *f, const char *path, const char *names)
{
    const struct attest_problem *p = &f->problem;
    const int32_t dtype = p->q.dtype;
    const struct tensor lse = {.name = "lse", .dtype = ATTEST_FP32, .ndim = 2, .shape = {p->num_heads_q, p->seqlen_q},
                               .data = f->lse};
    const struct tensor all[] = {
        rows_tensor("o", dtype, p->seqlen_q, p->num_heads_q, p->head_dim_v, f->o), lse,
        rows_tensor("dq", dtype, p->seqlen_q, p->num_heads_q, p->head_dim, f->dq),
        rows_tensor("dk", dtype, p->seqlen_k, p->num_heads_kv, p->head_dim, f->dk),
        rows_tensor("dv", dtype, p->seqlen_k, p->num_heads_kv, p->head_dim_v, f->dv),
    };
    struct tensor chosen[5];
    int count = 0;
    for (int i = 0; i < 5; ++i) {
        const char *at = strstr(names, all[i].name);
        const size_t length = strlen(all[i].name);
        if (at != NULL && (at == names || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            chosen[count++] = all[i];
    }
    fixture_write_tensors(path, chosen, count);
}

void fixture_write_tensors(const char *path, const struct tensor *tensors, int count)
{
    cr_assert_eq(write_safetensors(path_in_folder(path), tensors, count, NULL, 0), 0);
}

/* ---- runs ---- */

/* Where Bazel starts a test, and where the build is run by hand: the root of the project. */
static const char *root(void)
{
    static char path[512];
    if (path[0] == '\0') cr_assert_not_null(getcwd(path, sizeof path));
    return path;
}

const char *project_path(const char *relative)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", root(), relative);
    return path;
}

static const char *read_text(const char *name, char **text)
{
    free(*text);
    *text = NULL;
    size_t size = 0;
    FILE *in = fopen(path_in_folder(name), "r"), *out = open_memstream(text, &size);
    cr_assert(in != NULL && out != NULL);
    for (int c; (c = fgetc(in)) != EOF;) fputc(c, out);
    fclose(in);
    fclose(out);
    return *text;
}

int run_in_folder(const char *command)
{
    char *line = sentence("cd '%s' && %s", folder(), command);
    const int status = system(line);
    free(line);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) < 126, "a signal ended %s", command);
    return WEXITSTATUS(status);
}

const char *audit_binary(void)
{
    const char *binary = getenv("AUDIT"); /* as BUILD has it; absolute, or from the root of the project */
    cr_assert_not_null(binary, "AUDIT does not say where the audit is");
    return *binary == '/' ? binary : project_path(binary);
}

int run_audit(const char *arguments)
{
    char *command = sentence("'%s' %s >stdout 2>stderr", audit_binary(), arguments);
    const int status = run_in_folder(command);
    free(command);
    return status;
}

const char *audit_stdout(void)
{
    static char *text;
    return read_text("stdout", &text);
}

const char *audit_stderr(void)
{
    static char *text;
    return read_text("stderr", &text);
}

json_t *audit_json(void)
{
    json_error_t error;
    json_t *root_object = json_load_file(path_in_folder("a.json"), JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root_object, "a.json: %s", error.text);
    return root_object;
}

static json_t *tensor_object(json_t *root_object, int i, const char *name)
{
    json_t *implementation = json_array_get(json_object_get(root_object, "implementations"), (size_t)i);
    json_t *tensor = json_object_get(json_object_get(implementation, "tensors"), name);
    cr_assert_not_null(tensor, "no tensor %s of implementation %d", name, i);
    return tensor;
}

json_t *json_of_tensor(json_t *root_object, int i, const char *name)
{
    const char *recipe = json_string_value(json_object_get(json_object_get(root_object, "options"), "recipe"));
    return json_object_get(json_object_get(tensor_object(root_object, i, name), "recipes"), recipe);
}

const char *verdict_in(json_t *root_object, int i, const char *name)
{
    return json_string_value(json_object_get(tensor_object(root_object, i, name), "verdict"));
}
