#!/usr/bin/env -S python3 -B
"""The example: it says nothing that the repository does not have, and ci.sh fails where it should. A repository made
for this test stands for attest's, with a ci/run, a bazel and an nvidia-smi that do as they are told."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

FOLDER = "ci/example"
CI_SH, WORKFLOW, README = (os.path.join(FOLDER, name) for name in ("ci.sh", "github-actions.yml", "README.md"))


def text_of(path):
    with open(path) as file:
        return file.read()


class Names(unittest.TestCase):
    """What the files name is there."""

    texts = [text_of(path) for path in (CI_SH, WORKFLOW, README)]

    def named(self, pattern):
        found = {name for text in self.texts for name in re.findall(pattern, text)}
        self.assertTrue(found)
        return sorted(found)

    def test_commands_of_ci_run(self):
        for command in self.named(r"ci/run ([a-z]+)"):
            self.assertIn(f"\n{command})", text_of("ci/run"))

    def test_targets(self):
        for package, name in self.named(r"(?<!@attest)//([\w/]+):(\w+)"):
            self.assertIn(f'name = "{name}"', text_of(os.path.join(package, "BUILD")))

    def test_files(self):
        for path in self.named(r"\bci/[\w/-]+\.(?:sh|bzl|yml)\b"):
            self.assertTrue(os.path.exists(path), path)

    def test_options_of_the_gate(self):
        for option in {o for line in self.named(r"ci/run perf (--.*)") for o in re.findall(r"--\w+", line)}:
            self.assertIn(f'"{option}"', text_of("ci/perf/perf.py"))


class Syntax(unittest.TestCase):
    def steps(self):
        jobs = yaml.safe_load(text_of(WORKFLOW))["jobs"]
        self.assertEqual(sorted(jobs), ["gpu", "no-gpu"])
        return [step for job in jobs.values() for step in job["steps"]]

    def test_actions_are_pinned(self):
        for action in [step["uses"] for step in self.steps() if "uses" in step]:
            self.assertRegex(action, r"^actions/(checkout|upload-artifact)@[0-9a-f]{40}$")

    def test_shell(self):
        for script in [text_of(CI_SH)] + [step["run"] for step in self.steps() if "run" in step]:
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    def test_shellcheck(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("UNCHECKED: there is no shellcheck")
        subprocess.run(["shellcheck", CI_SH], check=True)


CI_RUN = """#!/bin/bash
[ "${BREAK:-}" != "$1" ] || { echo "$1 is broken"; exit 1; }
case "$*" in
test) echo "5 passed, 0 failed" ;;
coverage) mkdir -p coverage && touch coverage/index.html ;;
perf) echo "${COUNTS:-PASS: 3 counts}"; [[ ${COUNTS:-} != FAIL* ]] ;;
"perf --page "*) touch "$3" ;;
"perf --base "*)
    sides=$(tar -xOf "$3" gpu_bundle/commit) && sides="$sides $(tar -xOf "$5" gpu_bundle/commit)" && touch "$7"
    echo "${TIMES:-PASS: $sides}"
    case ${TIMES:-} in FAIL*) exit 1 ;; INVALID*) exit 2 ;; esac
    ;;
esac
"""

BAZEL = """#!/bin/bash
echo "$PWD $*" >>"$TEST_CALLS"
[ "$1" != build ] || {
    [ "${BREAK:-}" != build ] || exit 1
    mkdir -p gpu_bundle bazel-bin/ci && cp commit gpu_bundle
    printf '%s\\n' '#!/bin/bash' 'cd "$(dirname "$0")" && mkdir logs && touch logs/probe.log' \\
        'echo "1 passed, ${CHIP_FAILED:-0} failed, 0 unchecked"; exit "${CHIP_FAILED:-0}"' >gpu_bundle/run
    chmod +x gpu_bundle/run
    tar -cf bazel-bin/ci/gpu_bundle.tar gpu_bundle
}
"""

NVIDIA_SMI = """#!/bin/bash
[ "${GPU:-}" = none ] || echo "GPU 0: NVIDIA of this test"
"""


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        self.write("tools/bazel", BAZEL)
        self.write("tools/nvidia-smi", NVIDIA_SMI)
        self.write("cuda/bin/nvcc", "")
        self.calls = os.path.join(self.top, "calls")

    def write(self, path, text):
        path = os.path.join(self.top, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def git(self, *arguments):
        return subprocess.run(["git", "-C", os.path.join(self.top, "repository"), "-c", "user.name=t", "-c",
                               "user.email=t@example.com", *arguments], check=True, text=True, stdout=subprocess.PIPE)

    def repository(self, inside=""):
        """Two commits of a repository that holds attest in `inside`: where."""
        attest = os.path.join("repository", inside)
        self.write(os.path.join(attest, CI_SH), text_of(CI_SH))
        self.write(os.path.join(attest, "ci/run"), CI_RUN)
        self.git("init", "--quiet")
        for commit in ("base", "head"):
            self.write(os.path.join(attest, "commit"), commit)
            self.git("add", ".")
            self.git("commit", "--quiet", "-m", commit)
        return os.path.join(self.top, attest)

    def run_in(self, attest, *arguments, **environment):
        """Its exit status and the lines of its summary."""
        environment = {"PATH": os.path.join(self.top, "tools") + ":" + os.environ["PATH"], "HOME": self.top,
                       "TMPDIR": self.top, "CUDA_HOME": os.path.join(self.top, "cuda"), "TEST_CALLS": self.calls,
                       **environment}
        done = subprocess.run([os.path.join(attest, CI_SH), *arguments], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, [re.sub(" +", " ", line) for line in done.stdout.split("== summary\n")[-1].splitlines()]

    def fails(self, line, *arguments, **environment):
        status, summary = self.run_in(self.repository(), *arguments, **environment)
        self.assertIn(line, summary)
        self.assertRegex(summary[-1], r", [12] failed, 0 unchecked$")
        self.assertEqual(status, 1)

    def unchecked(self, why, **environment):
        status, summary = self.run_in(self.repository(), COUNTS="PASS: 3 counts, 4 UNCHECKED: no nvcc", **environment)
        self.assertEqual(summary[2:], ["PASS counts PASS: 3 counts, 4 UNCHECKED: no nvcc",
                                       f"UNCHECKED chip UNCHECKED: {why}", f"UNCHECKED times UNCHECKED: {why}",
                                       "3 passed, 0 failed, 2 unchecked"])
        self.assertEqual(status, 0)
        self.assertFalse(os.path.exists(self.calls))

    def test_all_of_it(self):
        attest = self.repository()
        status, summary = self.run_in(attest)
        self.assertEqual(summary, ["PASS tests 5 passed, 0 failed", "PASS coverage ", "PASS counts PASS: 3 counts",
                                   "PASS chip 1 passed, 0 failed, 0 unchecked", "PASS times PASS: base head",
                                   "5 passed, 0 failed, 0 unchecked"])
        self.assertEqual(status, 0)
        for pattern in re.findall(r"\b(?:coverage|ci-report)/[\w/.*]*", text_of(WORKFLOW)):
            self.assertTrue(glob.glob(os.path.join(attest, pattern)), pattern)

    def test_nothing_is_left_of_the_base(self):
        self.run_in(self.repository())
        self.assertEqual(len(self.git("worktree", "list").stdout.splitlines()), 1)
        built = [line.split(" ", 1) for line in text_of(self.calls).splitlines()]
        self.assertIn([built[1][0], "clean --expunge"], built)
        self.assertNotIn("repository", built[1][0])

    def test_another_base(self):
        self.assertIn("PASS times PASS: head head", self.run_in(self.repository(), "HEAD")[1])

    def test_in_a_folder_of_another_repository(self):
        self.assertIn("PASS times PASS: base head", self.run_in(self.repository("third_party/attest"))[1])

    def test_without_nvcc(self):
        self.unchecked("there is no nvcc", CUDA_HOME="none")

    def test_nvcc_of_the_path(self):
        attest = self.repository()
        self.write("tools/nvcc", "")
        self.assertEqual(self.run_in(attest, CUDA_HOME="")[1][-1], "5 passed, 0 failed, 0 unchecked")

    def test_without_a_gpu(self):
        self.unchecked("there is no GPU", GPU="none")

    def test_a_driver_that_shows_no_gpu(self):
        sentence = "UNCHECKED: timing needs an NVIDIA GPU: the driver shows no GPU"
        status, summary = self.run_in(self.repository(), TIMES=sentence)
        self.assertEqual(summary[-2:], ["UNCHECKED times " + sentence, "4 passed, 0 failed, 1 unchecked"])
        self.assertEqual(status, 0)

    def test_failures(self):
        self.fails("FAIL tests test is broken", BREAK="test")

    def test_failing_coverage(self):
        self.fails("FAIL coverage coverage is broken", BREAK="coverage")

    def test_no_gate(self):
        self.fails("FAIL counts perf is broken", BREAK="perf")

    def test_worse_counts(self):
        self.fails("FAIL counts FAIL: 3 counts, 1 worse", COUNTS="FAIL: 3 counts, 1 worse")

    def test_no_bundle(self):
        self.fails("FAIL chip ", BREAK="build")

    def test_failures_on_the_chip(self):
        self.fails("FAIL chip 1 passed, 1 failed, 0 unchecked", CHIP_FAILED="1")

    def test_slower(self):
        self.fails("FAIL times FAIL: 1 SLOWER", TIMES="FAIL: 1 SLOWER")

    def test_invalid(self):
        self.fails("FAIL times INVALID: 2 processes were on the GPU", TIMES="INVALID: 2 processes were on the GPU")

    def test_no_such_base(self):
        self.fails("FAIL times fatal: invalid reference: nonesuch", "nonesuch")

    def test_usage(self):
        self.assertEqual(self.run_in(self.repository(), "--help")[0], 2)


if __name__ == "__main__":
    unittest.main()
