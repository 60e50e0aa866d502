"""check_exports.py <repository> [<output of nm -D --defined-only -C>]: the library exports its public interface.

Every declaration of a public header that the library defines has INGOT_API, and every public header says what it is
for. With nm's output: nothing else is exported, neither other names of ours nor what templates of the standard library
and of third parties leave.
"""

import pathlib
import re
import sys

import public_api

NAME = re.compile(r"(?:(?:vtable|typeinfo name|typeinfo|VTT|non-virtual thunk) (?:for|to) )?"
                  r"(?:void |bool )?"  # of a function template
                  r"ingot::(operator\S+?(?=\()|\w+)(.*)")
PRIVATE = ("::Parts::", "::State::")


def exported_wrongly(line, public):
    """Of a line of nm's."""
    found = NAME.match(line.split(None, 2)[2])
    return not found or found[1] not in public or found[2].startswith(PRIVATE)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    public = public_api.names(root)
    problems = public_api.unmarked(root)
    problems += [f"src/{header}: has no paragraph at its top, which the API pages show for types without a comment"
                 for header in public_api.public_headers(root) if not public_api.has_paragraph(root, header)]
    if len(public) < 100:
        problems.append(f"only {len(public)} names were found: this check looks in the wrong place")
    if len(sys.argv) > 2:
        lines = pathlib.Path(sys.argv[2]).read_text().splitlines()
        problems += [f"{line}: is exported, but no public header declares it with INGOT_API" for line in lines
                     if exported_wrongly(line, public)]
        text = "\n".join(lines)
        problems += [f"{name}: has INGOT_API, but is not exported" for name in sorted(public - public_api.header_only(root))
                     if not re.search(rf"\bingot::(\w+::)*{re.escape(name)}(?!\w)", text)]
        print(f"{len(lines)} names are exported")
    if problems:
        sys.exit("What the library exports is not its public interface:\n  " + "\n  ".join(problems))
    print(f"{len(public)} declarations")


if __name__ == "__main__":
    main()
