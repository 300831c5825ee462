/* settings.c - the numbers and words of options and metadata, and the defaults. */
#include "reference/audit/settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const family_names[] = {"normal",    "outlier", "large",     "tiny", "mean",    "shift",
                                           "duplicate", "integer", "subnormal", "edge", "recorded"};
static const char *const statistical_families[] = {"normal", "outlier", "mean", "recorded"};

const char *setting_text(const struct audit_case *c, enum setting which, const char **origin)
{
    *origin = "option";
    if (c->options->settings[which] != NULL) return c->options->settings[which];
    *origin = "metadata";
    return tensor_set_setting(&c->set, which);
}

static bool is_one_of(const char *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (strcmp(text, names[i]) == 0) return true;
    return false;
}

static bool parse_diag_kind(const char *text, int32_t *kind)
{
    if (strcmp(text, "top-left") == 0) *kind = ATTEST_DIAG_TOP_LEFT;
    else if (strcmp(text, "bottom-right") == 0) *kind = ATTEST_DIAG_BOTTOM_RIGHT;
    else return false;
    return true;
}

/* The integer at *text, which moves past it. */
static bool parse_integer(const char **text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(*text, &end, 10);
    if (end == *text || errno != 0) return false;
    *text = end;
    return true;
}

/* Whether it is finite is the library's to say. */
static char *read_float(enum setting which, const char *text, float *value)
{
    char *end;
    *value = strtof(text, &end);
    return end == text || *end != '\0' ? sentence("%s is '%s', which is not a number", setting_names[which], text)
                                       : NULL;
}

static char *read_scale(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_SCALE, &origin);
    if (text == NULL) {
        c->problem.softmax_scale = (float)(1 / sqrt((double)c->problem.head_dim));
        note(&c->notes, "softmax_scale is not given: 1/sqrt(head_dim) = %g", c->problem.softmax_scale);
        return NULL;
    }
    char *wrong = read_float(SETTING_SCALE, text, &c->problem.softmax_scale);
    if (wrong == NULL) note(&c->notes, "softmax_scale %.9g (%s)", c->problem.softmax_scale, origin);
    return wrong;
}

static char *read_softcap(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_SOFTCAP, &origin);
    if (text == NULL) return NULL;
    char *wrong = read_float(SETTING_SOFTCAP, text, &c->problem.softcap);
    if (wrong == NULL) note(&c->notes, "softcap %.9g (%s)", c->problem.softcap, origin);
    return wrong;
}

static char *read_causal(struct audit_case *c)
{
    static const char *const yes[] = {"true", "True", "1", "top-left", "bottom-right"};
    static const char *const no[] = {"false", "False", "0"};
    const char *origin, *text = setting_text(c, SETTING_CAUSAL, &origin);
    if (text == NULL || is_one_of(text, no, sizeof no / sizeof *no)) return NULL;
    if (!is_one_of(text, yes, sizeof yes / sizeof *yes))
        return sentence("causal is '%s', which is none of true, false, top-left, bottom-right", text);
    struct attest_problem *p = &c->problem;
    p->window_right = 0;
    parse_diag_kind(text, &p->diag_kind);
    if (p->diag_kind == ATTEST_DIAG_UNSET) note(&c->notes, "causal (%s)", origin);
    else note(&c->notes, "causal, diagonal %s (%s)", text, origin);
    return NULL;
}

static char *read_window(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_WINDOW, &origin), *rest = text;
    if (text == NULL) return NULL;
    int64_t left, right;
    if (*rest == '(' || *rest == '[') ++rest;
    const bool is_pair = parse_integer(&rest, &left) && *rest++ == ',' && parse_integer(&rest, &right);
    if (is_pair && (*rest == ')' || *rest == ']')) ++rest;
    if (!is_pair || *rest != '\0')
        return sentence("window is '%s', which is not LEFT,RIGHT in integers", text);
    if (c->problem.window_right == 0 && right != 0)
        return sentence("window is '%s', but causal asks for RIGHT = 0", text);
    c->problem.window_left = left;
    c->problem.window_right = right;
    note(&c->notes, "window %lld,%lld (%s)", (long long)left, (long long)right, origin);
    return NULL;
}

/* As model configurations have it: so many keys up to the row's own. */
static char *read_sliding(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_SLIDING, &origin), *rest = text;
    int64_t keys;
    if (text == NULL) return NULL;
    if (!parse_integer(&rest, &keys) || *rest != '\0' || keys < 1)
        return sentence("sliding_window is '%s', which is not an integer above 0", text);
    if (c->problem.window_left >= 0 && c->problem.window_left != keys - 1)
        return sentence("sliding_window is %lld, but window has LEFT = %lld, not %lld", (long long)keys,
                        (long long)c->problem.window_left, (long long)keys - 1);
    c->problem.window_left = keys - 1;
    note(&c->notes, "sliding window of %lld keys, the row's own among them (%s)", (long long)keys, origin);
    return NULL;
}

static char *read_diag(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const char *origin, *text = setting_text(c, SETTING_DIAG, &origin), *rest = text;
    const int32_t of_causal = p->diag_kind;
    if (text != NULL && !parse_diag_kind(text, &p->diag_kind)) {
        p->diag_kind = ATTEST_DIAG_GIVEN;
        if (!parse_integer(&rest, &p->diag) || *rest != '\0')
            return sentence("diag is '%s', which is none of top-left, bottom-right and an integer", text);
    }
    if (of_causal != ATTEST_DIAG_UNSET && of_causal != p->diag_kind)
        return sentence("diag is '%s', but causal names another diagonal", text);
    if (text != NULL) note(&c->notes, "diagonal %s (%s)", text, origin);
    const bool differ = p->seqlen_q != p->seqlen_k || p->has_seqused_q || p->has_seqused_k ||
                        (p->ragged && c->args.forward.cu_seqlens_q != c->args.forward.cu_seqlens_k);
    if ((p->window_left < 0 && p->window_right < 0) || p->diag_kind != ATTEST_DIAG_UNSET) return NULL;
    if (!differ && !p->ragged) return NULL;
    p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    if (!differ) return NULL;
    c->diag_is_assumed = true;
    return case_guess(c, &c->notes, "seqlen_q and seqlen_k differ and diag is not given: bottom-right is assumed");
}

/* The slopes of Press, Smith & Lewis: 2^(-8 (h + 1) / n) for n heads, n a power of two; other counts take
 * the rest from every second slope of the next power. */
static void usual_slopes(float *slopes, int64_t heads)
{
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    for (int64_t h = 0; h < heads; ++h) {
        const double exponent = h < power ? 8.0 * (double)(h + 1) / (double)power
                                          : 8.0 * (double)(2 * (h - power) + 1) / (double)(2 * power);
        slopes[h] = (float)exp2(-exponent);
    }
}

static char *read_alibi(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_ALIBI, &origin), *rest = text;
    const int64_t heads = c->problem.num_heads_q;
    if (text == NULL) return NULL;
    float *slopes = case_own(c, allocate((size_t)heads, sizeof *slopes));
    if (strcmp(text, "auto") == 0) usual_slopes(slopes, heads);
    for (int64_t h = 0; h < heads && strcmp(text, "auto") != 0; ++h) {
        char *end;
        slopes[h] = strtof(rest, &end);
        if (end == rest || *end != (h + 1 < heads ? ',' : '\0') || !isfinite(slopes[h]))
            return sentence("alibi is '%s', which is not auto and not %lld finite numbers with commas between", text,
                            (long long)heads);
        rest = end + 1;
    }
    c->problem.has_alibi = 1;
    c->args.forward.alibi_slopes = slopes;
    note(&c->notes, "ALiBi slopes %s (%s)", text, origin);
    return NULL;
}

static char *read_block(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_BLOCK, &origin), *rest = text;
    struct attest_problem *p = &c->problem;
    if (text == NULL) return NULL;
    if (*rest == '(' || *rest == '[') ++rest;
    bool is_right = parse_integer(&rest, &p->block_q);
    p->block_k = p->block_q;
    if (is_right && *rest == ',') is_right = *++rest != '\0' && parse_integer(&rest, &p->block_k);
    if (is_right && (*rest == ')' || *rest == ']')) ++rest;
    if (is_right && *rest == '\0' && p->block_q > 0 && p->block_k > 0) return NULL;
    return sentence("block is '%s', which is not ROWS,COLUMNS in integers above 0", text);
}

static char *read_unsigned(struct audit_case *c, enum setting which, uint64_t *value)
{
    const char *origin, *text = setting_text(c, which, &origin);
    if (text == NULL) return NULL;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (end != text && *end == '\0' && errno == 0 && text[0] != '-') return NULL;
    return sentence("%s is '%s', which is not an integer in 0 .. 2^64 - 1", setting_names[which], text);
}

static char *read_dropout(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const char *origin, *text = setting_text(c, SETTING_DROPOUT, &origin);
    if (text == NULL) return NULL;
    char *wrong = read_float(SETTING_DROPOUT, text, &p->dropout_p);
    if (wrong == NULL) wrong = read_unsigned(c, SETTING_DROPOUT_SEED, &p->dropout_seed);
    if (wrong == NULL) wrong = read_unsigned(c, SETTING_DROPOUT_OFFSET, &p->dropout_offset);
    if (wrong == NULL && p->dropout_p != 0)
        note(&c->notes, "dropout %g by attest's counter, seed %llu, offset %llu (%s)", p->dropout_p,
             (unsigned long long)p->dropout_seed, (unsigned long long)p->dropout_offset, origin);
    return wrong;
}

static char *read_count(struct audit_case *c, enum setting which, int64_t *count)
{
    const char *origin, *text = setting_text(c, which, &origin), *rest = text;
    if (text == NULL) return NULL;
    if (parse_integer(&rest, count) && *rest == '\0' && *count > 0) return NULL;
    return sentence("%s is '%s', which is not an integer above 0", setting_names[which], text);
}

char *settings_read_heads(struct audit_case *c)
{
    char *wrong = read_count(c, SETTING_HEADS, &c->heads);
    return wrong != NULL ? wrong : read_count(c, SETTING_HEADS_KV, &c->heads_kv);
}

static char *read_family(struct audit_case *c)
{
    const char *origin, *text = setting_text(c, SETTING_FAMILY, &origin);
    c->family = text != NULL ? text : "recorded";
    if (!is_one_of(c->family, family_names, sizeof family_names / sizeof *family_names))
        return sentence("family is '%s', which is none of the contract's", text);
    c->statistical = is_one_of(c->family, statistical_families,
                               sizeof statistical_families / sizeof *statistical_families);
    return NULL;
}

char *settings_read(struct audit_case *c)
{
    typedef char *reader(struct audit_case *);
    static reader *const readers[] = {read_scale,   read_causal, read_window, read_sliding, read_diag,
                                      read_softcap, read_alibi,  read_block,  read_dropout, read_family};
    char *wrong = NULL;
    for (size_t i = 0; i < sizeof readers / sizeof *readers && wrong == NULL; ++i) wrong = readers[i](c);
    return wrong;
}
