"""test_help.py <program> <repository>: the help of every command tells its exit codes, and that of the program the
environment variables that docs/environment.md has and the library reads."""

import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
REPOSITORY = pathlib.Path(sys.argv[2]).resolve()


def run(*arguments):
    """What the program prints."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def commands(*path):
    """The commands that the help of a command names, and theirs: ("cache",), ("cache", "list") ..."""
    found = []
    listed = run(*path, "--help").partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  ([a-z_]+)", listed, re.MULTILINE):
        found += [(*path, name), *([] if path == ("bench",) else commands(*path, name))]
    return found


class Help(unittest.TestCase):
    def test_every_command_tells_its_exit_codes(self):
        found = commands()
        some = {("info",), ("show",), ("tune",), ("warm",), ("plan",), ("cache", "list"), ("bench", "gemm")}
        self.assertLessEqual(some, set(found))
        for command in [(), *found]:
            if command[:1] != ("bench",) or len(command) == 1:
                self.assertRegex(run(*command, "--help"), r"\nExit code", f"ingot {' '.join(command)} --help")

    def test_help_of_all_has_that_of_each(self):
        text = run("--help-all")
        for command in commands():
            self.assertRegex(text, rf"\n *{command[-1]}\n")
        for option in ("--mnk", "--bundle", "--older-than", "--sass"):
            self.assertIn(option, text)

    def test_environment_variables_are_those_of_the_document(self):
        document = (REPOSITORY / "docs/environment.md").read_text()
        documented = re.findall(r"^\| `(INGOT_\w+)`", document, re.MULTILINE)
        named = run("--help").partition("Environment variables")[2].partition("The store")[0]
        self.assertEqual(re.findall(r"INGOT_\w+", named), documented)
        read = set()
        for source in (REPOSITORY / "src/runtime").rglob("*.cpp"):
            read.update(re.findall(r'(?:environment\w*|read_\w+|getenv)\("(INGOT_\w+)"', source.read_text()))
        self.assertEqual(read - {"INGOT_GEMM_MANIFEST"}, set(documented))  # which is refused

    def test_every_benchmark_has_its_line(self):
        programs = {source.stem.removeprefix("bench_") for source in (REPOSITORY / "bench").glob("bench_*.cpp")}
        listed = {line.split()[0] for line in run("bench", "--list").splitlines()}
        self.assertEqual(listed, programs, "add the benchmark to kBenchmarks in tools/bench.cpp")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
