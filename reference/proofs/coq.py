"""Coq, Gappa and their files, for the tests."""

import os
import pathlib
import re
import subprocess

THEOREM = re.compile(r"^Theorem (\w+)", re.M)
AXIOM = re.compile(r"^([\w.]+) *(?::|$)", re.M)
# Of Coq's real numbers, of Flocq's and Coquelicot's classical logic.
ALLOWED = {
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
}


def coqc(folder, name):
    """Whether folder/name.v compiles, and what Coq says."""
    result = subprocess.run(["coqc", "-q", "-w", "-ambiguous-paths", "-Q", ".", "Attest", name + ".v"], cwd=folder,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, "HOME": str(folder)})  # without one Coq complains
    return result.returncode == 0, result.stdout


def gappa(folder, name):
    """Whether Gappa proves folder/name.gappa, and its proof for Coq, or what it says."""
    result = subprocess.run(["gappa", "-Bcoq", name + ".gappa"], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
    return result.returncode == 0, result.stdout if result.returncode == 0 else result.stderr


def in_order(folder):
    """Names of the theories, each after those that it needs."""
    files = sorted(path.name for path in folder.glob("*.v"))
    said = subprocess.run(["coqdep", "-sort", "-Q", ".", "Attest", *files], cwd=folder, text=True, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return [pathlib.Path(name).stem for name in said.split()]


def axioms(folder, theorems):
    """What theorems, each `theory.name`, of a folder with compiled theories assume, all together."""
    theories = sorted({theorem.split(".")[0] for theorem in theorems})
    (folder / "assumptions.v").write_text(f"From Attest Require {' '.join(theories)}.\n"
                                          f"Definition all := ({', '.join('@' + theorem for theorem in theorems)}).\n"
                                          "Print Assumptions all.\n")
    good, said = coqc(folder, "assumptions")
    if not good or not re.match(r"Axioms:\n|Closed under the global context\n", said):
        raise AssertionError(said)
    return set(AXIOM.findall(said.partition("Axioms:\n")[2]))


def mutants(text):
    """Entries of mutants.txt: dictionaries with mutant, bug, file, from, to."""
    entries, key = [], None
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("|"):
            entries[-1][key] += line[1:] + "\n"
        elif word in ("from", "to"):
            key = word
            entries[-1][key] = ""
        elif word == "mutant":
            entries.append({word: rest.strip()})
        elif word in ("bug", "file"):
            entries[-1][word] = rest.strip()
    return entries


def mutated(text, entry):
    """text with the entry's change; None where what is replaced is not there exactly once."""
    before, after = entry["from"][:-1], entry["to"][:-1]
    return text.replace(before, after) if text.count(before) == 1 else None
