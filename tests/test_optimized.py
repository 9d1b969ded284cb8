"""`python -O` takes asserts away, and -OO what __doc__ says: what is refused stays refused, in the same words."""

import os
import subprocess
import sys
import textwrap

import pytest

from pod.files import ROOT

pytest.importorskip("torch", reason="torch is not installed")

# By what is wrong: the beginning of what is said.
CALLS = {
    'pod.plan([], [], 4, 2, 64)': "q_lens: got",
    'pod.plan([0], [4], 4, 2, 64)': "q_lens: got",
    'pod.plan([5], [4], 4, 2, 64)': "kv_lens: got",
    'pod.plan([1, 1], [4], 4, 2, 64)': "kv_lens: got",
    'pod.plan([1], [4], 3, 2, 64)': "num_q_heads: got",
    'pod.plan([1], [4], 4, 2, 65)': "head_dim: got",
    'pod.plan([1], [4], 4, 2, 64, page_size=0)': "page_size: got",
    'pod.plan([1], [4], 4, 2, 64, method="none", device="cpu")': "method: got",
    'pod.hybrid_attention(None, k, v, plan, table)': "q: got",
    'pod.hybrid_attention(q[:1], k, v, plan, table)': "q: got shape",
    'pod.hybrid_attention(q.double(), k, v, plan, table)': "q: got dtype",
    'pod.hybrid_attention(q, k, v[:1], plan, table)': "v_cache: got",
    'pod.hybrid_attention(q, k, v, plan, table + 1000)': "block_table: got",
    'pod.hybrid_attention(q, k, v, plan, None)': "block_table: got None",
    'pod.hybrid_attention(q, k, v, plan, table, out=q)': "out: got memory of q",
    'pod.hybrid_attention(q, k, v, plan, table, softmax_scale=0)': "softmax_scale: got",
    'pod.hybrid_attention(q.requires_grad_(), k, v, plan, table)': "q: got a tensor that requires a gradient",
}  # fmt: skip
VERBS = {
    "simulate --block-size 0": "block_size: got 0",
    "simulate --low 5000 --high 100 --workload uniform": "low: got 5000",
    "simulate --requests 2 --log {0}/nowhere/x": "log: got",
    "generate hello --tokens 0": "--tokens: got 0",
    "serve --chunk 1": "--chunk: got 1",
    "serve --random none --port 0": "--random: got 'none'",
    "serve /dev/zero --port 0": "/dev/zero: got",
    "figures no-such": "unknown figure",
    "figures pod-t1 --out /dev/null/x": "--out: got",
    "compute no-such": "no computed table",
    "contest tickets {0}/none.py": "/",
    "trace --sms 0": "sms: got 0",
}
CODE = """
    import os, sys, tempfile
    import pod
    from pod.__main__ import main
    from pod.batch import HybridBatch
    assert False, "so nothing is asserted here"
    os.chdir(sys.argv[1])
    batch = HybridBatch([4, 1], [20, 30], 4, 2, 64, page_size=16)
    plan = pod.plan(batch, device="cpu")
    for call in {calls!r}:
        q, k, v, table = batch.tensors()
        try:
            eval(call)
            print("nothing was refused")
        except ValueError as error:
            print(error)
    for verb in {verbs!r}:
        if main(verb.format(sys.argv[1]).split()) != 2:
            print("nothing was refused", file=sys.stderr)
"""


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_what_is_refused_stays_refused(option, tmp_path):
    code = textwrap.dedent(CODE).format(calls=list(CALLS), verbs=list(VERBS))
    command = [sys.executable, option, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    wanted = [*CALLS.values(), *(f"python -m pod {verb.split()[0]}: {words}" for verb, words in VERBS.items())]
    for line, words in zip(lines, wanted, strict=True):
        assert line.startswith(words)


def test_help_needs_no_docstring():
    for module in ("pod", "pod.lab.measure.check_kernels"):
        done = subprocess.run([sys.executable, "-OO", "-m", module, "--help"], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, ""), module
