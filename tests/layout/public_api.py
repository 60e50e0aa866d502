"""What the public headers declare and the library defines: the names that libingot.so exports, and nothing else.

declarations(<repository>) finds each class and function of a public header that the library defines. The headers
are formatted: what begins a line belongs to the namespace, what is indented by two columns to a class.
"""

import pathlib
import re

from check_includes import public_headers

# Declared with a spec, because the compiler asks each operation for them, but only for the library: print(),
# validate(), parse() and generate() of codegen/kernel_spec.h and generate.h are what a program calls.
FOR_THE_LIBRARY = ["print_spec", "validate_spec", "read_spec", "extra_passes", "template_instance"]

CLASS = re.compile(r"^(class|struct) (INGOT_API )?(\w+)(?: final)?(?: : [^{;]*)? \{(.*)$")
NO_DECLARATION = re.compile(r"(inline|constexpr|template|using|enum|namespace|class|struct|requires|static_assert|friend)\b")


def statements(lines, column):
    """(number of its first line, text) of what begins at a column of code and ends with a semicolon or a brace."""
    start = None
    for number, line in enumerate(lines):
        text = re.sub(r"//.*", "", line).rstrip()
        if start is None and re.match(rf" {{{column}}}[\w\[~]", text):
            start, parts = number, []
        if start is None:
            continue
        parts.append(text.strip())
        if re.search(r"[;{}]$", text) or not text:
            yield start, " ".join(parts)
            start = None


def defined_elsewhere(statement):
    """Is it a function without a body?"""
    statement = re.sub(r'"[^"]*"', '""', re.sub(r" = \{[^{}]*\}", "", statement))
    return (bool(re.search(r"\w\(|operator\S+\(", statement)) and statement.endswith(";") and "{" not in statement
            and not re.search(r"= (default|delete|0);$", statement) and not NO_DECLARATION.match(statement)
            and not re.match(r"template\b|.*\bconstexpr\b", statement) and "std::function<" not in statement.split("(")[0])


def name_of(statement):
    return re.search(r"(operator\s*\S+?|[~\w]+)\(", re.sub(r"^(\[\[\w+\]\]|INGOT_API|\s)+", "", statement))[1]


def class_body(lines, first):
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}"))
    return lines[first + 1 : last]


def needs_export(body):
    """A class that is defined in part in the library, or whose type a program and the library must agree on."""
    found = [statement for _, statement in statements(body, 2)]
    return any(re.search(r"\bvirtual\b|\boverride\b", each) or defined_elsewhere(each) for each in found)


def declarations(root):
    """(header, line from 0, name, is it marked) of everything that is to be exported."""
    for header in sorted(public_headers(root)):
        path = root / "src" / header
        if not path.is_file():
            path = root / "src" / (header + ".in")
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            found = CLASS.match(line)
            if found and not found[4].strip() and ("runtime_error" in line or needs_export(class_body(lines, number))):
                yield header, number, found[3], bool(found[2])
        for number, statement in statements(lines, 0):
            if defined_elsewhere(statement) and name_of(statement) not in FOR_THE_LIBRARY:
                yield header, number, name_of(statement), "INGOT_API " in statement


def names(root):
    return {name for _, _, name, _ in declarations(root)}


def has_paragraph(root, header):
    path = root / "src" / header
    return not path.is_file() or path.read_text().startswith("// ")


def header_only(root):
    """Classes that are marked for their types alone: each program has its own copy of their functions."""
    found = set()
    for header in public_headers(root):
        path = root / "src" / header
        lines = path.read_text().splitlines() if path.is_file() else []
        for number, line in enumerate(lines):
            if CLASS.match(line) and not CLASS.match(line)[4].strip():
                body = class_body(lines, number)
                if not any(defined_elsewhere(each) for _, each in statements(body, 2)):
                    found.add(CLASS.match(line)[3])
    return found


def unmarked(root):
    return [f"src/{header}:{number + 1}: {name} lacks INGOT_API, so a program that links libingot.so cannot reach it"
            for header, number, name, marked in declarations(root) if not marked]
