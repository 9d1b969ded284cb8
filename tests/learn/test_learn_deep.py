"""Whatever calls itself too often, in a CUDA cell or in Python, is one message, and the notebook lives on."""

import re
import subprocess
import sys

import pytest

from pod import kernels, learn
from pod.files import ROOT
from pod.learn import faults, judge, rewrite

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(kernels.mode().name == "recorded", reason=kernels.mode().reason)

KERNEL = "__global__ void k(float* x) {\n    x[threadIdx.x] = f(threadIdx.x);\n}\n"
DEEP = {
    "for ever": ("__device__ int f(int n) {\n    return n + f(n + 1);\n}\n", "f", 1),
    "deeper than the stack": ("__device__ int f(int n) {\n    return n > 99999 ? 0 : 1 + f(n + 1) % 7;\n}\n", "f", 1),
    "by way of another": (
        "__device__ int g(int);\n__device__ int f(int n) {\n    return 1 + g(n);\n}\n"
        "__device__ int g(int n) {\n    return 2 * f(n + 1);\n}\n", "f", 2),
    "with an array each": (
        "__device__ int f(int n) {\n    int own[500];\n    for (int i = 0; i < 500; ++i) own[i] = n + i;\n"
        "    return own[n % 500] + f(own[3]);\n}\n", "f", 1),
    "of many types": ("template <class T> __device__ T f(T n) {\n    return n + f(n + 1);\n}\n", "f", 1),
}  # fmt: skip


def fault_of(text: str):
    return learn.cuda(text).k[1, 32].watch(torch.zeros(32)).fault


@pytest.mark.parametrize("way", DEEP)
def test_a_function_that_calls_itself_is_named_with_its_line(way):
    text, name, line = DEEP[way]
    fault = fault_of(text + KERNEL)
    first, *quoted = str(fault).splitlines()
    assert fault.kind == "stack" and first.startswith(f"stack: `{name}` in line {line} calls itself")
    assert fault.lines == (line,) and len(quoted) == 1 and text.splitlines()[line - 1] in quoted[0]


def test_a_kernel_that_calls_itself_is_named():
    fault = fault_of("__global__ void k(float* x) {\n    k(x + 1);\n    x[0] = 1;\n}\n")
    assert str(fault).startswith("stack: `k` in line 1 calls itself")


def test_one_that_ends_in_time_is_computed():
    x = torch.zeros(32)
    learn.cuda("__device__ int f(int n) {\n    return n ? n + f(n - 1) : 0;\n}\n" + KERNEL).k[1, 32](x)
    assert x.tolist() == [n * (n + 1) / 2 for n in range(32)]


def test_an_assert_and_a_stray_write_are_no_deep_calls():
    deep = "__device__ int f(int n) {\n    assert(n < 0);\n    return n ? f(n - 1) : 0;\n}\n"
    assert "An assert did not hold" in str(fault_of("#include <cassert>\n" + deep + KERNEL))
    stray = "int own = 0;\n    int* p = &own;\n    p[t << 20] = t;\n    x[t] = own;"
    text = f"__global__ void k(float* x) {{\n    int t = threadIdx.x + 1;\n    {stray}\n}}\n"
    assert "crash: the kernel's program ended" in str(fault_of(text))


@pytest.mark.parametrize("text, found", [
    ("int f(int n) { return n; }", None),
    ("int f(int n) { return g(n); } int g(int n) { return h(n); } int h(int n) { return g(n); }", ("g", 1)),
    ("\nint f(int n) {\n  if (n) { return f(n - 1); }\n  return 0;\n}", ("f", 2)),
    ("// f f f\nint f(int n) { return n; }  // calls f", None),
    ("__global__ void __launch_bounds__(64) k(float* x) { for (int i = 0; i < 3; ++i) { x[i] = 1; } }", None),
])  # fmt: skip
def test_who_calls_whom(text, found):
    assert rewrite.calls_itself(text) == found


def test_the_stack_is_as_large_as_is_said():
    shift = re.search(r"kBytes = (\d+) << 10;", (ROOT / "csrc/emulate/fiber.h").read_text())[1]
    assert faults.ROOM == f"{shift} KiB"


def test_of_a_long_line_a_part_is_quoted():
    body = " + ".join(["x[0]"] * 400)
    with pytest.raises(learn.CompileError) as told:
        learn.cuda(f"__global__ void k(float* x) {{ x[0] = {body} + y + {body}; }}")
    line, mark = str(told.value).splitlines()[1:]
    assert len(line) < 250 and line[mark.index("^")] == "y"


# ---------------------------------------------------------------- in Python

LIFTED = "import sys; sys.setrecursionlimit(10**9)\n"
SHOWN = "class A:\n    def __repr__(self):\n        return repr(self)\n"
ASKED = "class A:\n    def __getattr__(self, name):\n        return getattr(self, name + 'x')\n"
NESTED = "x = []\nfor _ in range(200_000):\n    x = [x]\n"
PYTHON = {
    "itself": ("return last_end(lengths, slots)", "RecursionError: "),
    "itself, through C": ("return sorted([1], key=lambda x: last_end(lengths, slots))", "RecursionError: "),
    "with the limit lifted": (LIFTED + "return sorted([1], key=lambda x: last_end(lengths, slots))", "RecursionError"),
    "attributes, with the limit lifted": (LIFTED + ASKED + "return A().b", "RecursionError: "),
    "a value that cannot be shown": (LIFTED + SHOWN + "return A()", "A, which cannot be shown: RecursionError"),
    "a list in a list": (NESTED + "return x", "list, which cannot be shown: RecursionError"),
    "a list in a list, with the limit lifted": (LIFTED + NESTED + "return x", "list, which cannot be shown: "),
}
JUDGED = """
from pod.learn import judge
exec(compile({text!r}, "<cell>", "exec"), names := {{}})
print(judge.judge(judge.exercises()["last_end"], names["last_end"]))
print("here", __import__("sys").getrecursionlimit())
"""


@pytest.mark.parametrize("way", PYTHON)
def test_python_that_calls_itself_is_one_message_and_the_notebook_lives_on(way):
    body, message = PYTHON[way]
    text = "def last_end(lengths, slots):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    done = subprocess.run([sys.executable, "-c", JUDGED.format(text=text)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    (got,) = (line for line in done.stdout.splitlines() if line.startswith("  got"))
    assert message in got and "here 1000" in done.stdout and len(done.stdout) < 1500


def test_the_limit_is_given_back():
    before, lift = sys.getrecursionlimit(), sys.setrecursionlimit
    with judge.depth_limit():
        sys.setrecursionlimit(10**6)
        assert sys.getrecursionlimit() == judge.MOST_DEEP
    assert (sys.getrecursionlimit(), sys.setrecursionlimit) == (before, lift)
