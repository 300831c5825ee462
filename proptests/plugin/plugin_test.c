/* plugin_test.c - audits of shared libraries and of attest itself: verdicts, sentences, exit status. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/audit_fixture.h"
#include "reference/audit/notes.h"

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "'%s' is not in: %s", part, text);
}

/* Audits proptests/plugin/NAME.so with more options; compares the exit status. */
static void audit_plugin(int want, const char *name, const char *options)
{
    char *file = sentence("proptests/plugin/%s.so", name);
    char *arguments = sentence("--plugin %s --json a.json %s", project_path(file), options);
    const int got = run_audit(arguments);
    cr_assert_eq(got, want, "%s %s: exit status %d, expected %d: %s%s", name, options, got, want, audit_stdout(),
                 audit_stderr());
    free(file), free(arguments);
}

static json_t *property_in(json_t *root, const char *name)
{
    size_t i;
    json_t *property;
    json_array_foreach(json_object_get(root, "properties"), i, property)
        if (strcmp(json_string_value(json_object_get(property, "name")), name) == 0) return property;
    cr_assert_fail("there is no property %s", name);
    return NULL;
}

static void expect_verdict(json_t *root, const char *name, const char *want)
{
    json_t *property = property_in(root, name);
    cr_expect_str_eq(json_string_value(json_object_get(property, "verdict")), want, "%s: %s", name, audit_stdout());
}

static int count_verdicts(json_t *root, const char *verdict)
{
    size_t i;
    int count = 0;
    json_t *property;
    json_array_foreach(json_object_get(root, "properties"), i, property)
        count += strcmp(json_string_value(json_object_get(property, "verdict")), verdict) == 0;
    return count;
}

/* ---- what is right ---- */

Test(plugin, the_example_passes_in_what_it_takes)
{
    audit_plugin(0, "unfused", "--cases 600");
    expect_text(audit_stdout(), "recipe unfused: sums fp32, delta exact");
    expect_text(audit_stdout(), "refuses fp16 bf16 fp8: attest_plan_create: ATTEST_UNSUPPORTED: a tensor is not fp32");
    json_t *root = audit_json();
    expect_verdict(root, "forward_within_bound", "PASS");
    expect_verdict(root, "backward_within_bound", "PASS");
    expect_verdict(root, "gqa_repeats_heads", "PASS");
    expect_verdict(root, "strides_are_layout_backward", "PASS");
    expect_verdict(root, "poison_is_not_felt", "PASS");
    expect_verdict(root, "dropout_counter", "UNSUPPORTED");
    expect_verdict(root, "mask_forms_agree", "UNSUPPORTED");
    expect_verdict(root, "merge_laws", "ABSENT");
    cr_expect_gt(count_verdicts(root, "PASS"), 20);
    cr_expect_eq(count_verdicts(root, "FAIL") + count_verdicts(root, "CRASH") + count_verdicts(root, "VACUOUS"), 0);
    json_decref(root);
}

Test(plugin, every_input_family_is_asked_and_has_its_share)
{
    audit_plugin(0, "unfused", "--cases 600");
    json_t *root = audit_json(), *families = json_object_get(root, "families"), *family;
    size_t i;
    cr_expect_eq(json_array_size(families), 11);
    json_array_foreach(families, i, family) {
        json_t *o = json_object_get(json_object_get(family, "tensors"), "o");
        const double share = json_number_value(json_object_get(o, "share"));
        cr_expect_gt(json_integer_value(json_object_get(family, "cases")), 0);
        cr_expect(share > 0 && share <= 1, "%s: %g", json_string_value(json_object_get(family, "family")), share);
    }
    json_decref(root);
}

Test(plugin, attest_itself_passes_on_host_memory)
{
    cr_assert_eq(run_audit("--device reference --cases 100 --json a.json"), 0, "%s%s", audit_stdout(), audit_stderr());
    json_t *root = audit_json();
    cr_expect_eq(count_verdicts(root, "PASS"), (int)json_array_size(json_object_get(root, "properties")), "%s",
                 audit_stdout());
    json_decref(root);
}

Test(plugin, the_same_seed_gives_the_same_report)
{
    audit_plugin(0, "unfused", "--cases 100 --threads 1");
    char *first = strdup(audit_stdout());
    audit_plugin(0, "unfused", "--cases 100 --threads 2");
    cr_expect_str_eq(audit_stdout(), first);
    audit_plugin(0, "unfused", "--cases 100 --seed 2");
    cr_expect_str_neq(audit_stdout(), first);
    free(first);
}

Test(plugin, a_part_that_is_absent_is_said)
{
    audit_plugin(0, "no_backward", "--cases 100");
    expect_text(audit_stdout(), "ABSENT: it does not export attest_run_backward");
    json_t *root = audit_json();
    expect_verdict(root, "forward_within_bound", "PASS");
    expect_verdict(root, "backward_within_bound", "ABSENT");
    json_decref(root);
}

/* A recipe of an older header ends before what came later, one of a newer header goes on with zeros. */
Test(plugin, recipes_of_other_headers_are_read)
{
    static const char *const names[] = {"recipe_old", "recipe_new"};
    for (int i = 0; i < 2; ++i) {
        audit_plugin(0, names[i], "--cases 60");
        expect_text(audit_stdout(), "recipe unfused: sums fp32, delta exact");
        json_t *root = audit_json();
        expect_verdict(root, "forward_within_bound", "PASS");
        json_decref(root);
    }
}

/* ---- what is wrong ---- */

Test(plugin, a_mask_off_by_one_fails_and_replays)
{
    audit_plugin(1, "slip", "--cases 400");
    json_t *root = audit_json();
    expect_verdict(root, "forward_within_bound", "FAIL");
    expect_verdict(root, "backward_within_bound", "FAIL");
    json_t *property = property_in(root, "forward_within_bound");
    expect_text(json_string_value(json_object_get(property, "message")), "the oracle says");
    char *replay = sentence("--replay '%s'", json_string_value(json_object_get(property, "replay")));
    audit_plugin(1, "slip", replay);
    expect_text(audit_stdout(), "the oracle says");
    audit_plugin(0, "unfused", replay);
    json_decref(root);
    free(replay);
}

/* The property that must notice, and what it must say. */
static void expect_fault(const char *name, const char *verdict, const char *message)
{
    audit_plugin(1, name, "--cases 60");
    json_t *root = audit_json(), *property = property_in(root, "forward_within_bound");
    expect_verdict(root, "forward_within_bound", verdict);
    expect_text(json_string_value(json_object_get(property, "message")), message);
    json_decref(root);
}

Test(plugin, faults_are_found)
{
    expect_fault("past_output", "FAIL", "forward changed bytes of");
    expect_fault("writes_input", "FAIL", "forward changed bytes of");
    expect_fault("past_workspace", "FAIL", "it wrote past the end of its workspace");
    expect_fault("no_sentence", "FAIL", "attest_run_forward: ATTEST_DEVICE_ERROR: (no sentence)");
    expect_fault("share_short", "FAIL", "the last share has no room for the problem's lengths");
    expect_fault("recipe_loose", "VACUOUS", "are larger than its values");
}

Test(plugin, a_crash_is_a_verdict_with_its_smallest_case)
{
    expect_fault("crash", "CRASH", "it ended by signal 11 (Segmentation fault)");
    expect_text(audit_stdout(), "smallest case: batch 1, seqlen 6 x ");
    expect_fault("exit", "CRASH", "it ended its process with status 0");
    expect_fault("hang", "CRASH", "a call did not return within a minute");
    audit_plugin(1, "crash_backward", "--cases 60");
    json_t *root = audit_json();
    expect_verdict(root, "forward_within_bound", "PASS");
    expect_verdict(root, "backward_within_bound", "CRASH");
    json_decref(root);
}

/* ---- what cannot be audited ---- */

static void expect_sentence(const char *name, const char *part)
{
    audit_plugin(2, name, "");
    expect_text(audit_stderr(), part);
    cr_expect_eq(strchr(audit_stderr(), '\n')[1], '\0', "more than one line: %s", audit_stderr());
    cr_expect_str_eq(audit_stdout(), "");
}

Test(plugin, what_cannot_be_audited_is_one_sentence)
{
    expect_sentence("no_forward", "it does not export attest_run_forward");
    expect_sentence("version", "its attest_version is 9.9.0, which is not compatible with 0.1.0");
    expect_sentence("struct_size", "attest_plan_create: ATTEST_INVALID: struct_size is another header's");
    expect_sentence("refuses_all", "it takes not even a plain problem: attest_plan_create: ATTEST_UNSUPPORTED");
    expect_sentence("no_share", "it exports no attest_plan_share: name a recipe by --recipe");
    expect_sentence("share_null", "attest_plan_share: ATTEST_INVALID: it returned NULL: name a recipe by --recipe");
    expect_sentence("share_size", "the share's struct_size is less than that of any header's");
    expect_sentence("share_endless", "it has too many shares");
    expect_sentence("recipe_null", "the share's recipe is NULL: name a recipe by --recipe");
    expect_sentence("recipe_inf", "its enums as in attest.h, tile_k and errors numbers >= 0");
    expect_sentence("recipe_size", "the recipe's struct_size is 0, but must be between");
    expect_sentence("recipe_newer", "the recipe is of a newer header and says what this audit does not know");
    expect_sentence("crash_at_load", "it ended by signal 6 (Aborted)");
    expect_sentence("is_not_there", "it is no shared library that can be loaded");
    audit_plugin(0, "no_share", "--recipe fp32 --cases 60");
    cr_expect_eq(run_in_folder("echo text >text.so"), 0);
    cr_expect_eq(run_audit("--plugin text.so"), 2);
    expect_text(audit_stderr(), "audit: text.so: it is no shared library that can be loaded");
}

Test(plugin, wrong_usage_is_status_2)
{
    static const struct {
        const char *options, *sentence;
    } wrong[] = {
        {"--device tpu", "--device: 'tpu' is none of cuda sim reference"},
        {"--device reference --cases 0", "--cases: '0' is no number in 1 .. "},
        {"--device reference --causal", "causal is drawn at random"},
        {"--device reference --html x.html", "are for files"},
        {"--device reference in.st", "in.st: properties are asked without files"},
        {"--cases 3 in.st x.st", "--cases, --seed and --replay need --plugin or --device"},
        {"--device reference --replay v2", "not a replay line"},
        {"--device reference --replay 'v1;property=nonsense;implementation=reference.0;choices='", "names no property"},
        {"--device reference --replay 'v1;property=empty_rows;implementation=sun.0;choices='", "names no property"},
        {"--plugin x.so --json x.safetensors", "is data, not a place for a report"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        cr_expect_eq(run_audit(wrong[i].options), 2, "%s", wrong[i].options);
        expect_text(audit_stderr(), wrong[i].sentence);
    }
}

Test(plugin, a_gpu_is_asked_or_said_to_be_missing)
{
    if (run_audit("--device cuda --cases 33") == 0) return;
    cr_expect_eq(run_audit("--device cuda --cases 33"), 2, "%s", audit_stdout());
    const char *const text = audit_stderr();
    cr_expect(strstr(text, "no CUDA") != NULL || strstr(text, "UNCHECKED: there is no GPU") != NULL, "%s", text);
}
