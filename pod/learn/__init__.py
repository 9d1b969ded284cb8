"""CUDA in a notebook cell, exercises with judges, and predictions as questions."""

from pod.learn import program
from pod.learn.arguments import LaunchError
from pod.learn.contests import contest
from pod.learn.cuda import cuda
from pod.learn.faults import CellError, CompileError, Fault
from pod.learn.judge import check
from pod.learn.questions import answer, ask

__all__ = ["CellError", "CompileError", "Fault", "LaunchError", "answer", "ask", "check", "contest", "cuda"]


def load_ipython_extension(shell) -> None:
    """%load_ext pod.learn: a cell that begins with %%cuda becomes kernels among the notebook's names."""

    def magic(line: str, text: str) -> None:
        shell.push(cuda(text).kernels)

    shell.register_magic_function(magic, "cell", "cuda")
    program.prepare()
