"""test_documents.py <program> <repository>: man pages and completions name every command and option of --help-all, what
they print is sound to groff and mandoc, and bash and zsh complete with them (those of the four that are installed)."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
REPOSITORY = pathlib.Path(sys.argv[2]).resolve()
ZSH_COMPLETE = REPOSITORY / "tests/tools/zsh_complete.zsh"

# Its pages are not of a command.
ROOT = "ingot"


def run(*arguments, **options):
    """What the program prints."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def help_of_all():
    """{"warm": {"--set", ...}, "cache list": ...} as --help-all has it, and {"ingot": ...} for the program itself."""
    found = {ROOT: {"--help", "--help-all", "--version"}}
    path = []  # (indentation, name) of the commands that the line is in
    text = run("--help-all")
    for line in text[text.index("\nSubcommands:\n") + 1 :].splitlines():
        indent = len(line) - len(line.lstrip())
        name = re.fullmatch(r" *([a-z][a-z_]*)", line)
        if name:
            while path and path[-1][0] >= indent:
                path.pop()
            path.append((indent, name[1]))
            found[" ".join(part for _, part in path)] = set()
        elif path:
            option = re.match(r" +((?:-[-\w]+,?)+)(?: |$)", line)
            if option and indent > path[-1][0]:
                found[" ".join(part for _, part in path)].update(option[1].split(","))
        if line.startswith("Exit codes:"):
            break
    return found


def pages():
    """{"ingot": roff, "ingot-warm": roff ...}"""
    with tempfile.TemporaryDirectory() as folder:
        run("man", "--folder", folder)
        return {page.stem: page.read_text() for page in sorted(pathlib.Path(folder).iterdir())}


def bash_offers(*words, folder="."):
    """What bash completes the last of the words to."""
    script = """source /dev/stdin; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ingot; printf '%s\\n' "${COMPREPLY[@]}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "ingot", *words],
        input=run("completion", "bash"), cwd=folder, capture_output=True, text=True, check=True,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split()


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = help_of_all()
        cls.pages = pages()

    def test_help_is_read(self):
        for command in ("info", "show", "tune", "warm", "cache", "cache list", "bench", "bench gemm", "man"):
            self.assertIn(command, self.commands)
        self.assertLessEqual({"--set", "--recipe", "--bundle", "--json"}, self.commands["warm"])

    def test_pages_name_every_command_and_option(self):
        for command, options in self.commands.items():
            name = ROOT if command == ROOT else f"{ROOT}-{command.split()[0]}"
            page = self.pages[name].replace("\\-", "-")
            self.assertIn(command.split()[-1], page)
            for option in options:
                self.assertTrue(f"\\fB{option}\\fR" in page, f"{name}(1) does not name {option} of {command}")

    def test_pages_have_their_sections(self):
        for name, page in self.pages.items():
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
                self.assertEqual(page.count(f".SH {section}\n"), 1, f"{name}(1), {section}")
            self.assertEqual(run("man", name.removeprefix("ingot-")), page)
            other = "ingot" if name != "ingot" else "ingot\\-warm"
            self.assertIn(f"\\fB{other}\\fR(1)", page)

    def test_pages_tell_how_to_run_strictly(self):
        for name in ("ingot-warm", "ingot-cache"):
            page = self.pages[name].replace("\\-", "-").replace("\n", " ")
            for word in ("INGOT_CACHE_MODE", "INGOT_CACHE_MAX_BYTES", "INGOT_CACHE_TIERS"):
                self.assertIn(f".TP \\fB{word}\\fR", page, f"{name}(1), ENVIRONMENT")
            for words in ("own source", "INGOT_CACHE_MODE=auto", "INGOT_CACHE_MODE=strict"):
                self.assertIn(words, page, name)
        self.assertIn("is looked up", self.pages["ingot-warm"].replace("\n", " "))
        self.assertIn("chmod -R a+rX", self.pages["ingot-cache"].replace("\\-", "-").replace("\n", " "))
        for word in ("training", "decoding", "rms_norm_gated_mlp", "f32_output"):
            self.assertIn(word, self.pages["ingot-warm"])
        self.assertIn("INGOT_RECORD", run("tune", "--help"))

    def test_every_help_tells_the_exit_codes(self):
        for command in self.commands:
            if command.startswith("bench "):
                continue
            text = run(*([] if command == ROOT else command.split()), "--help")
            self.assertRegex(text, r"\nExit code", f"ingot {command} --help")

    def test_environment_variables_are_those_of_the_document(self):
        documented = re.findall(r"^\| `(INGOT_\w+)`", (REPOSITORY / "docs/environment.md").read_text(), re.MULTILINE)
        page = self.pages["ingot"]
        named = re.findall(r"^\\fB(INGOT_\w+)\\fR$", page[page.index(".SH ENVIRONMENT") :], re.MULTILINE)
        self.assertEqual(named, documented)

    def test_every_benchmark_has_its_line(self):
        programs = {source.stem.removeprefix("bench_") for source in (REPOSITORY / "bench").glob("bench_*.cpp")}
        listed = {line.split()[0] for line in run("bench", "--list").splitlines()}
        self.assertEqual(listed, programs, "add the benchmark to benchmarks() in tools/bench.cpp")

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_groff_warns_of_nothing(self):
        for name, page in self.pages.items():
            command = ["groff", "-man", "-ww", "-Tascii"]
            done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, "", name)
            self.assertIn("EXIT STATUS", re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_mandoc_finds_nothing(self):
        for name, page in self.pages.items():
            done = subprocess.run(["mandoc", "-Tlint"], input=page, capture_output=True, text=True, check=False)
            # A page has no date, so that the same source makes the same page.
            found = [line for line in done.stdout.splitlines() if "missing date" not in line]
            self.assertEqual(found, [], name)


class Bash(unittest.TestCase):
    def test_every_command_and_option_is_offered(self):
        for command, options in help_of_all().items():
            words = [] if command == ROOT else command.split()
            missing = options - set(bash_offers(*words, "-"))
            self.assertEqual(missing, set(), f"bash completes ingot {command} without these")
            if words:
                self.assertIn(words[-1], bash_offers(*words[:-1], ""))

    def test_beginnings(self):
        self.assertEqual(bash_offers("wa"), ["warm"])
        self.assertEqual(bash_offers("warm", "--gp"), ["--gpu"])
        self.assertEqual(bash_offers("bench", "weight"), ["weight_only"])
        self.assertEqual(bash_offers("warm", "--shard", "0/4", "--bun"), ["--bundle"])
        self.assertEqual(bash_offers("warm", "--set", "llama3-8b", "--bun"), ["--bundle"])
        self.assertEqual(bash_offers("frobnicate", "--s"), [])

    def test_values(self):
        self.assertEqual(bash_offers("warm", "--set", "llama3"), ["llama3-8b", "llama3-70b"])
        self.assertEqual(bash_offers("tune", "--set", "llama2-7"), ["llama2-7b", "llama2-70b"])
        self.assertEqual(bash_offers("tune", "--set", "=", "llama2-70"), ["llama2-70b"])
        self.assertIn("tensorwise", bash_offers("tune", "--recipe", "="))
        self.assertIn("rowwise_folded", bash_offers("tune", "--recipe", ""))
        self.assertEqual(bash_offers("warm", "--dtype", ""), ["bf16", "f16"])
        self.assertIn("sm_90a", bash_offers("show", "--target", ""))
        self.assertIn("e4m3fn", bash_offers("tune", "--weight-only", ""))
        self.assertEqual(bash_offers("tune", "--weight-scale", "m"), ["mx"])
        self.assertEqual(bash_offers("completion", ""), ["bash", "zsh"])
        self.assertEqual(bash_offers("man", "wa"), ["warm"])
        self.assertEqual(bash_offers("man", "in"), ["ingot", "info"])
        self.assertEqual(bash_offers("cache", "prune", "--target", "sm_9"), ["sm_90a"])
        self.assertEqual(bash_offers("cache", "prune", "--max-size", ""), [])
        self.assertEqual(bash_offers("tune", "--budget", ""), [])

    def test_values_of_a_list(self):
        self.assertEqual(bash_offers("warm", "--gpu", "h20"), ["h20", "h200"])
        self.assertEqual(bash_offers("warm", "--gpu", "h200,h20"), ["h200,h20", "h200,h200"])
        self.assertEqual(bash_offers("warm", "--recipe", "delayed,block"), ["delayed,blockwise"])

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "run.ingot").touch()
            (pathlib.Path(folder) / "pages").mkdir()
            for words in (("warm", "--recording"), ("tune", "--import"), ("warm", "--bundle"), ("show", "--cubin"),
                          ("bench", "gemm", "--json"), ("cache", "import"), ("cache", "list", "--tier")):
                self.assertEqual(bash_offers(*words, "ru", folder=folder), ["run.ingot"])
            self.assertEqual(bash_offers("man", "--folder", "", folder=folder), ["pages"])


@unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
class Zsh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "_ingot").write_text(run("completion", "zsh"))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def offers(self, line):
        done = subprocess.run(
            ["zsh", "-f", ZSH_COMPLETE, self.folder, line],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=60,
        )
        self.assertEqual(done.returncode, 0, f"{line}: {done.stdout} {done.stderr}")
        return done.stdout.split()

    def test_every_command_and_option_is_offered(self):
        for command, options in help_of_all().items():
            if command.startswith("bench "):
                continue  # the benchmark's own
            line = "ingot " if command == ROOT else f"ingot {command} "
            missing = {each for each in options if each.startswith("--")} - set(self.offers(line + "--"))
            self.assertEqual(missing, set(), f"zsh completes {line}without these")
        self.assertLessEqual({"info", "show", "tune", "warm", "bench"}, set(self.offers("ingot ")))
        self.assertLessEqual({"gemm", "weight_only"}, set(self.offers("ingot bench ")))

    def test_values(self):
        self.assertLessEqual({"llama3-8b", "llama3-70b"}, set(self.offers("ingot warm --set llama3")))
        self.assertIn("rowwise_folded", self.offers("ingot tune --recipe row"))
        self.assertIn("h200", self.offers("ingot warm --gpu h100,h2"))
        self.assertEqual(set(self.offers("ingot completion ")), {"bash", "zsh"})
        self.assertIn("_ingot", self.offers("ingot warm --bundle "))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
