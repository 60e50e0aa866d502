"""test_check_includes.py <repository>: check_includes.py says of every wrong file where it belongs.

Plants wrong files in a copy of the tree, as it is, and reads what is said of each.
"""

import pathlib
import shutil
import sys
import tempfile

import check_includes

# path -> (text, what must be said of it: all of it, one part to a problem)
WRONG = {
    # What is no file of src/include.
    "src/runtime/util/broken.h": ('#include "ingot/runtime/util/gone.h"\n', ["which is no file of src/include"]),
    # A call of what no included header declares.
    "src/nn/modules/undeclared.cpp": (
        "void f() { experts_take({}); }\n",
        ["calls experts_take(), and includes nothing that declares it, as ingot/nn/linear/grouped_linear_plan.h does"],
    ),
    "src/nn/modules/undeclared_in_expressions.cpp": (
        "bool f(bool a) {\n  return a && experts_take({});\n}\n"
        "bool g(bool a) {\n  const bool b = a and\n      not experts_take({});\n  return b;\n}\n",
        ["calls experts_take(), and includes nothing that declares it"],
    ),
    "src/nn/modules/undeclared_in_a_comparison.cpp": (
        "bool f(int a) {\n  return\n      a > experts_take({}) ||\n      a && experts_take({});\n}\n",
        ["calls experts_take(), and includes nothing that declares it"],
    ),
    "src/nn/modules/declared_here.cpp": (
        "template <class T>\nstd::vector<T*>& experts_take(const T& x) {\n  return x;\n}\nvoid f() { experts_take(1); }\n"
        "void g() {\n  if (true) {\n    const auto experts_give = [] { return 1; };\n    experts_give();\n  }\n}\n",
        [],
    ),
    # Rooms of src/nn, and circles within one.
    "src/nn/stray.h": ("#pragma once\n", ["it belongs in one of src/nn/: observe, recipe, linear, weights, modules, dist, planning"]),
    "src/nn/recipe/late.h": (
        '#include "ingot/nn/modules/float8_linear.h"\n',
        ["recipe comes before modules (ROOMS in check_includes.py): what both need belongs in recipe/ or ahead of it"],
    ),
    "src/runtime/util/circle_a.cpp": ('#include "ingot/runtime/util/circle_b.h"\n', []),
    "src/runtime/util/circle_a.h": ("#pragma once\n", []),
    "src/runtime/util/circle_b.h": ('#include "ingot/runtime/util/circle_a.h"\n', []),
    "src/runtime/util/circle_a": ("", ["is in a circle with src/runtime/util/circle_b: what they share"]),
    "python_bindings/ingot/_circle_a.py": ("import ingot._circle_b\n", []),
    "python_bindings/ingot/_circle_b.py": ("def f():\n    from . import _circle_a\n", []),
    "ingot._circle_a": ("", ["is in a circle with ingot._circle_b"]),
    # Rooms.
    "src/runtime/stray.cpp": (
        '#include "ingot/runtime/gemm/gemm_tensors.h"\n#include "ingot/runtime/util/digest.h"\n',
        ["is outside the folders; it uses gemm, so it belongs in src/runtime/gemm/"],
    ),
    "src/runtime/sparse/sparse.h": (
        '#include "ingot/codegen/pointwise/pointwise.h"\n#include "dequant/dequant_codes.cuh"\n',
        ["is in no known folder; it uses pointwise and dequant, so it belongs in src/runtime/dequant/"],
    ),
    "src/codegen/alone.h": (
        "#include <string>\n",
        ["is outside the folders; it belongs in its family's folder (pointwise, cast, gemm, dequant, norm, quantize), or, "
         "without a family, in one of src/codegen/: types"],
    ),
    "src/codegen/gemm/deep/deep.h": ("#pragma once\n", ["a folder of a layer has no subfolders: it belongs in src/codegen/gemm/"]),
    "templates/stray.cuh": (
        '#include "platform.cuh"\n#include "norm/norm.cuh"\n',
        ["is outside the folders; it uses norm, so it belongs in templates/norm/"],
    ),
    # The order of families, in one layer and across layers.
    "src/codegen/cast/early.h": (
        '#include "ingot/codegen/gemm/gemm_spec.h"\n',
        ["includes ingot/codegen/gemm/gemm_spec.h, but cast comes before gemm", "it belongs in src/codegen/gemm/"],
    ),
    "src/runtime/gemm/early.cpp": (
        '#include "dequant/dequant_codes.cuh"\n#include "gemm/gemm_params.cuh"\n',
        ["includes dequant/dequant_codes.cuh, but gemm comes before dequant",
         "it uses gemm and dequant, so it belongs in src/runtime/dequant/"],
    ),
    "templates/pointwise/early.cuh": (
        '#include "cast/source.cuh"\n',
        ["includes cast/source.cuh, but pointwise comes before cast", "it belongs in templates/cast/"],
    ),
    "templates/ptx/early.cuh": ('#include "gemm/gemm_params.cuh"\n', ["ptx comes before gemm", "templates/gemm/"]),
    "src/runtime/norm/measured.cpp": (
        '#include "ingot/runtime/measure/timing.h"\n',
        ["norm comes before measure", "what both need belongs in norm/ or ahead of it"],
    ),
    "src/runtime/util/knows.h": (
        '#include "ingot/codegen/gemm/gemm_spec.h"\n',
        ["includes ingot/codegen/gemm/gemm_spec.h, but util knows no family; it uses gemm, so it belongs in "
         "src/runtime/gemm/"],
    ),
    "src/runtime/gemm/joins.cpp": (
        '#include "ingot/runtime/context/cuda_backend.h"\n',
        ["gemm comes before context (ROOMS in check_includes.py)"],
    ),
    # Floors.
    "src/codegen/types/launches.h": (
        '#include "ingot/runtime/core/stream.h"\n',
        ["it belongs in src/runtime/, as what touches memory, a device or the disk belongs there"],
    ),
    "src/codegen/types/locks.cpp": ("#include <mutex>\n", ["includes <mutex>, but codegen is pure", "src/runtime/"]),
    "src/runtime/util/layers.h": (
        '#include "ingot/nn/recipe/config.h"\n',
        ["it belongs in src/nn/, as what knows layers belongs there"],
    ),
    "src/runtime/gemm/kernel.cuh": ("#pragma once\n", ["a .cuh file belongs in templates/"]),
    "templates/gemm/host.h": ("#pragma once\n", ["a .h file belongs in src/"]),
    "templates/gemm/std.cuh": ("#include <vector>\n", ["includes <vector>: a template includes only templates"]),
    "templates/gemm/ours.cuh": (
        '#include "ingot/codegen/types/dtype.h"\n',
        ["includes ingot/codegen/types/dtype.h: a template includes only templates"],
    ),
    "src/runtime/util/lost.cpp": (
        '#include "digest.h"\n',
        ["includes digest.h, which is neither ingot/<layer>/<path>.h nor a file of templates/"],
    ),
    # The environment.
    "src/nn/linear/caller.cpp": (
        '#include <cstdlib>\nconst char* home() { return std::getenv("HOME"); }  // getenv\n',
        ["uses getenv: call environment() of ingot/runtime/util/environment.h"],
    ),
    "src/nn/linear/comment.cpp": ("// getenv\n", []),
    # What is installed.
    "src/runtime/util/published.h": (
        '#include <fmt/format.h>\n#include "platform.cuh"\n',
        ["includes <fmt/format.h>: a public header includes only the standard library and POSIX",
         "includes platform.cuh: a public header includes no template"],
    ),
    # Right ones, of which nothing is said.
    "src/runtime/gemm/right.cpp": (
        '#include <fmt/format.h>\n#include "ingot/runtime/cast/cast_tensors.h"\n#include "cast/source.cuh"\n'
        '#include "ingot/runtime/core/stream.h"\n#include "ingot/runtime/jit/launcher.h"\n',
        [],
    ),
    "src/runtime/measure/right.cpp": ('#include "ingot/runtime/context/context.h"\n#include "norm/norm.cuh"\n', []),
    "src/codegen/types/right.h": ('#include "ingot/runtime/util/error.h"\n', []),
}


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for each in ["src", "templates", "python_bindings/ingot"]:
            shutil.copytree(source / each, root / each, symlinks=True)
        before, _ = check_includes.check(root)
        for file, (text, _) in WRONG.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            assert not (root / file).exists(), file
            (root / file).write_text(text)
        (root / "src/ingot.h").write_text((root / "src/ingot.h").read_text() + '#include "ingot/runtime/util/published.h"\n')
        after, _ = check_includes.check(root)
    found = [problem for problem in after if problem not in before]
    for file, (_, parts) in WRONG.items():
        said = [problem for problem in found if problem.startswith(file + ": ")]
        for part in parts:
            if not any(part in problem for problem in said):
                faults.append(f"{file}: nothing says {part!r}, but {said}")
        if not parts and said:
            faults.append(f"{file} is right, but {said}")
    others = [problem for problem in found if problem.partition(": ")[0] not in WRONG]
    faults += [f"said of a file that was not planted: {problem}" for problem in others]
    if faults:
        sys.exit("check_includes.py does not say what it should:\n  " + "\n  ".join(faults))
    print(f"{len(WRONG)} planted files: each is told where it belongs")


if __name__ == "__main__":
    main()
