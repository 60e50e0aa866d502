"""check_includes.py <repository>: every source file is where its includes say, and nothing includes what comes later.

Layers: what NVRTC compiles is a template; what is pure is in src/codegen; what touches memory, a device or the disk in
src/runtime; what knows linear layers in src/nn. nn includes runtime, which includes codegen; templates include only
templates.

Families: in each layer a file is in its family's folder, or in a folder without a family; src/nn, which uses all
families, has only folders of the second kind. A folder includes itself and the folders before it in the lists below, so
that there are no circles. Files at the root of templates and src/codegen join the folders, and any folder may include
them.

What a source file calls is declared by a header that it includes, directly or through others: the quick builds compile
many files as one, which hides a missing include that breaks all other builds.

No circles within a folder either: a header and its source count as one, and so do a Python module's imports at its head
and within its functions (python_bindings/ingot).

<ingot/...> resolves in a fresh clone, before any build, by the links of src/include/ingot.

Nothing in src reads the environment but src/runtime/util/environment.cpp, which gives a setuid program none of it.

What is installed (ingot.h and all that it includes in turn) includes only the standard library and POSIX.
"""

import ast
import pathlib
import re
import sys

WINGS = ["pointwise", "cast", "gemm", "dequant", "norm", "quantize"]

# The folders of each layer, in the order in which they may include each other.
ROOMS = {
    "templates": ["ptx", *WINGS],
    "src/codegen": ["types", *WINGS],
    "src/runtime": ["util", "core", "cpu", "cuda", "dist", "jit", "tuning", *WINGS, "context", "measure"],
    "src/nn": ["observe", "recipe", "linear", "weights", "modules", "dist", "planning"],
}

# The files that stay at a layer's root, without their extensions.
ROOT_FILES = {
    "templates": ["platform", "formats", "granularity", "numerics", "scaling", "memory", "reduce", "shared", "cluster", "vec8"]
    + ["vec8_tiles", "expert_slots"],
    "src/codegen": ["kernel_spec", "generate", "template_files", "source_files", "matmul", "recording"],
    "src/runtime": [],
    "src/nn": [],
}

# Folders without a family that work on all of them; the others know no family in any layer.
FOR_ALL_FAMILIES = ["tuning", "context", "measure"]

# The error type is everybody's; it includes nothing of ours.
FOR_ALL_FLOORS = ["ingot/runtime/util/count_of.h", "ingot/runtime/util/error.h"]

# Of no layer: what the library exports, and its version. They include nothing of ours but each other.
AT_THE_ROOT = ["ingot/api.h", "ingot/version.h"]

# What codegen's values and pure functions have no use for; template_files reads templates from a folder.
IMPURE = ["atomic", "condition_variable", "cuda.h", "dlfcn.h", "filesystem", "fstream", "future", "mutex"]
IMPURE += ["shared_mutex", "thread", "unistd.h"]
MAY_READ_FILES = ["template_files"]

# A call that reads the environment, and the one file that may.
READS_ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|environ|temp_directory_path)\b")
MAY_READ_ENVIRONMENT = "src/runtime/util/environment.cpp"

FLOORS = ["src/codegen", "src/runtime", "src/nn"]  # each may include those before it, and templates
WHY_THERE = {
    "src/runtime": "what touches memory, a device or the disk belongs there",
    "src/nn": "what knows layers belongs there",
}
TEMPLATES_ONLY = "a template includes only templates, by their path in templates/"


def includes_of(path):
    """'"name"' or '<name>' of every #include."""
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*("[^">]*"|<[^">]*>)', path.read_text(), re.MULTILINE)


def public_headers(root):
    """ingot.h, what it includes, and what those include in turn, as cmake/public_headers.cmake installs them."""
    found = ["ingot.h"]
    for header in found:
        if not (root / "src" / header).is_file():
            continue
        text = (root / "src" / header).read_text()
        for included in re.findall(r'^#include "ingot/([^"]*)"', text, re.MULTILINE):
            if included not in found:
                found.append(included)
    return set(found)


def floor_of(include, root):
    """The layer and the path within it of an include in quotes; (None, include) if it is in none."""
    match = re.match(r"ingot/(codegen|runtime|nn)/(.*)", include)
    if match:
        return "src/" + match[1], match[2]
    if (root / "templates" / include).is_file():
        return "templates", include
    return None, include


def room_of(path):
    """The folder of a path within its layer; "" at the root."""
    return path.rpartition("/")[0].partition("/")[0]


def wings_used(includes, root):
    """The families whose folders a file includes, in any layer, in their order."""
    used = {room_of(floor_of(each.strip('"'), root)[1]) for each in includes if each.startswith('"')}
    return [wing for wing in WINGS if wing in used]


def home(floor, includes, root):
    """Where in this layer a file with these includes belongs, in words."""
    if floor == "src/nn":
        return f"it belongs in one of {floor}/: {', '.join(ROOMS[floor])}"
    used = wings_used(includes, root)
    if used:
        return f"it uses {' and '.join(used)}, so it belongs in {floor}/{used[-1]}/"
    rooms = ", ".join(room for room in ROOMS[floor] if room not in WINGS)
    return f"it belongs in its family's folder ({', '.join(WINGS)}), or, without a family, in one of {floor}/: {rooms}"


class Checker:
    def __init__(self, root):
        self.root = root
        self.public = public_headers(root)
        self.problems = []
        self.checked = 0

    def refuse(self, file, message):
        self.problems.append(f"{file}: {message}")

    def check_floor(self, floor):
        for path in sorted((self.root / floor).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cuh"):
                self.check_file(floor, path)

    def check_file(self, floor, path):
        file = str(path.relative_to(self.root))
        within = str(path.relative_to(self.root / floor))
        includes = includes_of(path)
        self.checked += len(includes)
        if (path.suffix == ".cuh") != (floor == "templates"):
            where = "templates/" if path.suffix == ".cuh" else "src/"
            return self.refuse(file, f"a {path.suffix} file belongs in {where}: NVRTC compiles templates/ and only them")
        if floor in ROOMS:
            self.check_place(floor, file, within, includes)
        found = READS_ENVIRONMENT.search(re.sub(r"//.*", "", path.read_text()))
        if found and file != MAY_READ_ENVIRONMENT:
            self.refuse(file, f"uses {found[1]}: call environment() of ingot/runtime/util/environment.h, so that a "
                        "setuid program takes nothing from its caller")
        for include in includes:
            if include.startswith('"'):
                self.check_quoted(floor, file, within, include[1:-1], includes)
            else:
                self.check_system(floor, file, within, include[1:-1])

    def check_place(self, floor, file, within, includes):
        room = room_of(within)
        if within.count("/") > 1:
            self.refuse(file, f"a folder of a layer has no subfolders: it belongs in {floor}/{room}/")
        elif room and room not in ROOMS[floor]:
            self.refuse(file, f"is in no known folder; {home(floor, includes, self.root)}")
        elif not room and pathlib.PurePath(within).stem not in ROOT_FILES[floor]:
            self.refuse(file, f"is outside the folders; {home(floor, includes, self.root)}")

    def check_system(self, floor, file, within, include):
        if floor == "templates":
            self.refuse(file, f"includes <{include}>: {TEMPLATES_ONLY}")
        elif file.removeprefix("src/") in self.public and not re.fullmatch(r"[a-z_]+|unistd\.h", include):
            self.refuse(file, f"includes <{include}>: a public header includes only the standard library and POSIX")
        elif floor == "src/codegen" and include in IMPURE and pathlib.PurePath(within).stem not in MAY_READ_FILES:
            self.refuse(file, f"includes <{include}>, but codegen is pure: it belongs in src/runtime/, as "
                        + WHY_THERE["src/runtime"])

    def check_quoted(self, floor, file, within, include, includes):
        target, path = floor_of(include, self.root)
        if include.startswith("ingot/") and not (self.root / "src/include" / include).is_file():
            self.refuse(file, f"includes {include}, which is no file of src/include: its links make ingot/<path> what an "
                        "install has")
        if include in AT_THE_ROOT and floor != "templates":
            return
        if floor == "templates" and target != floor:
            self.refuse(file, f"includes {include}: {TEMPLATES_ONLY}")
        elif target is None:
            self.refuse(file, f"includes {include}, which is neither ingot/<layer>/<path>.h nor a file of templates/")
        elif target == "templates" and file.removeprefix("src/") in self.public:
            self.refuse(file, f"includes {include}: a public header includes no template")
        elif target in FLOORS and FLOORS.index(target) > FLOORS.index(floor) and include not in FOR_ALL_FLOORS:
            self.refuse(file, f"includes {include}, of a later layer: it belongs in {target}/, as {WHY_THERE[target]}")
        elif floor in ROOMS:
            self.check_rooms(floor, file, within, include, target, path, includes)

    def check_rooms(self, floor, file, within, include, target, path, includes):
        room, other = room_of(within), room_of(path)
        if room not in ROOMS[floor]:
            return  # at the root, or refused already
        if target == floor and other in ROOMS[floor]:
            order = ROOMS[floor]
            if order.index(other) > order.index(room):
                self.refuse(file, f"includes {include}, but {room} comes before {other} (ROOMS in check_includes.py): "
                            + self.way_out(floor, room, other, includes))
        elif target != floor and other in WINGS and room not in FOR_ALL_FAMILIES and floor != "src/nn":
            if room not in WINGS:
                self.refuse(file, f"includes {include}, but {room} knows no family; {home(floor, includes, self.root)}")
            elif WINGS.index(other) > WINGS.index(room):
                self.refuse(file, f"includes {include}, but {room} comes before {other} (WINGS in check_includes.py): "
                            + self.way_out(floor, room, other, includes))

    def way_out(self, floor, room, other, includes):
        if other in WINGS and room not in FOR_ALL_FAMILIES:
            return home(floor, includes, self.root)
        return f"what both need belongs in {room}/ or ahead of it"


def reached_from(name, uses):
    """The names that a name uses, and those that these use, and so on; itself only where it is in a circle."""
    seen, ahead = set(), [name]
    while ahead:
        for each in uses[ahead.pop()]:
            if each not in seen:
                seen.add(each)
                ahead.append(each)
    return seen


def circles(uses):
    """The groups of names that use each other in a circle, each sorted. `uses`: name -> the names that it uses."""
    reached = {name: reached_from(name, uses) for name in uses}
    groups = {tuple(sorted(each for each in reached[name] if name in reached[each])) for name in uses}
    return sorted(group for group in groups if len(group) > 1)


def units(root):
    """The files of src without their extensions, and which others each includes."""
    files = [path for floor in FLOORS for path in (root / floor).rglob("*") if path.suffix in (".h", ".cpp")]
    uses = {str(path.relative_to(root).with_suffix("")): set() for path in files}
    for path in files:
        unit = str(path.relative_to(root).with_suffix(""))
        for include in includes_of(path):
            other = "src/" + include.strip('"').removeprefix("ingot/").removesuffix(".h")
            if other in uses and other != unit:
                uses[unit].add(other)
    return uses


# A function that a header declares outside classes; something that a file declares itself, or calls. What declares begins a
# line, with types whose & and * are attached to them, or says auto; `a && f(x)`, `a > f(x)` and `not f(x)` are expressions.
DECLARATION = re.compile(r"^(?:[\w:<>,*&\[\]]+\s+)+[*&]?(\w+_\w+)\(", re.MULTILINE)
_TYPE = r"[\w:]+(?:<[^;\n]*?[\w>*&)]>)?(?:::\w+)*[&*]*"
OWN = re.compile(rf"^[ \t]*(?:template <[^\n]*>\s+)?((?:{_TYPE}\s+)+)(\w+)(?:\(| =|\{{)|\bauto[&*]*\s+(\w+) =", re.MULTILINE)
NO_TYPES = {"return", "else", "throw", "not", "and", "or", "new", "delete", "case", "co_return", "co_yield", "co_await"}
CALL = re.compile(r"(?<![\w.>])(?:\w+::)*(\w+_\w+)\(")


def undeclared_calls(root):
    """(source file, function, header): calls of functions of src's headers that no included header names."""
    texts = {str(path.relative_to(root / "templates")): path.read_text() for path in (root / "templates").rglob("*.cuh")}
    for path in (path for floor in FLOORS for path in (root / floor).rglob("*") if path.suffix in (".h", ".cpp")):
        texts["ingot/" + str(path.relative_to(root / "src"))] = path.read_text()
    includes = {name: [each for each in re.findall(r'#include "([^"]*)"', text) if each in texts] for name, text in texts.items()}
    code = {name: re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', "", text) for name, text in texts.items()}
    words = {name: set(re.findall(r"\w+", text)) for name, text in code.items()}
    headers = {match[1]: name for name, text in code.items() if name.endswith(".h") for match in DECLARATION.finditer(text)}
    for name, text in code.items():
        if not name.endswith(".cpp"):
            continue
        seen = reached_from(name, includes)
        own = {each[2] or each[3] for each in OWN.finditer(text) if NO_TYPES.isdisjoint((each[1] or "").split())}
        for called in sorted(set(CALL.findall(text)) - own):
            if called in headers and not any(called in words[each] for each in seen):
                yield "src/" + name.removeprefix("ingot/"), called, headers[called]


def imports_of(path, package):
    """The names that a Python module imports, wherever it does, except for what is imported for type checkers alone."""
    found, ahead = set(), [ast.parse(path.read_text())]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        ahead.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            found.update((base, f"{base}.{each.name}") for each in node.names)
    return found


def modules(root):
    """The modules of python_bindings/ingot, and which others each imports."""
    folder = root / "python_bindings"
    paths = {}
    for path in [*(folder / "ingot").rglob("*.py"), folder / "ingot/_core.pyi"]:
        parts = path.relative_to(folder).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    uses = {}
    for name, path in paths.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        uses[name] = set()
        for each in imports_of(path, package):
            base, inner = each if isinstance(each, tuple) else (each, each)
            uses[name].add(inner if inner in paths else base)
        uses[name] = {each for each in uses[name] if each in paths and each != name}
    return uses


def check(root):
    """The problems of a tree, as sentences, and the number of includes that were read."""
    checker = Checker(root)
    for floor in ["templates", *FLOORS]:
        checker.check_floor(floor)
    for file, called, header in undeclared_calls(root):
        checker.refuse(file, f"calls {called}(), and includes nothing that declares it, as {header} does")
    for circle in circles(units(root)) + circles(modules(root)):
        checker.refuse(circle[0], f"is in a circle with {', '.join(circle[1:])}: what they share belongs in a file of its "
                       "own, or they are one")
    return checker.problems, checker.checked


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems, checked = check(root)
    if problems:
        sys.exit("Files that break the layout:\n  " + "\n  ".join(problems))
    if checked < 100:
        sys.exit(f"Only {checked} includes were found under {root}: this check looks in the wrong place")
    print(f"{checked} includes keep the layout")


if __name__ == "__main__":
    main()
