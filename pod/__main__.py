"""POD-Attention, explained and rebuilt: figures, claims and measurements from the command line."""

from __future__ import annotations

import signal

LOADING = __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if LOADING:  # Ctrl-C then ends it as the system does, without the words of some import
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pod.files import INSTALLED, PACKAGE
from pod.kernels import BuildError

# Each verb lives in its own module, which offers configure(parser) and run(args) -> exit code.
VERBS = {
    "doctor": ("pod.lab.doctor", "what this machine can do, and the command that mends each lack"),
    "figures": ("pod.lab.gallery", "draw figures and the gallery into figures/; --list names them all"),
    "claims": ("pod.lab.claims", "the papers' claims beside our values, with verdicts"),
    "measure": ("pod.lab.measure.run", "measure on this GPU into data/fresh/"),
    "compare": ("pod.lab.measure.compare", "fresh measurements against the recorded ones"),
    "keep": ("pod.lab.measure.keep", "make fresh measurements the recorded ones, or say why recorded ones still hold"),
    "compute": ("pod.lab.measure.compute", "make the tables that need no GPU into data/computed/; --check only looks"),
    "trace": ("pod.lab.trace", "draw which CTA ran where and when"),
    "simulate": ("pod.simulate.cli", "serve a workload on a modelled GPU; what the users feel"),
    "capacity": ("pod.simulate.capacity", "the highest rate of requests at which a modelled system keeps its promises"),
    "judge": ("pod.simulate.judge", "how far off the simulator's cost is, part by part, on public profiles or yours"),
    "generate": ("pod.serving.generate", "a small chat model answers, on this machine"),
    "serve": ("pod.serving.serve", "the same engine behind the OpenAI API: MODEL.gguf, for any client"),
    "notebooks": ("pod.lab.notebooks", "re-execute the notebooks and save them in canonical form; --check only looks"),
    "progress": ("pod.learn.scores", "which exercises and predictions you have got right so far"),
    "contest": ("pod.learn.contests", "par and your best in each contest, or the score of an entry"),
    "site": ("pod.lab.site.verb", "the chapters, the gallery, the claims and three explorers as a static site"),
    "readme": ("pod.lab.readme", "refresh the generated part of README.md; --check only looks"),
}
ANYWHERE = ("doctor", "trace", "generate", "serve")  # the others read data/ and notebooks/, which only a clone has


class Parser(argparse.ArgumentParser):
    """Argparse, but a mistake costs the reader one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_in_one_line(message)}; --help tells more\n")


def main(argv: list[str] | None = None) -> int:
    """Obey a verb; returns the exit code. What a person can mend costs one line, a mistake of ours its traceback."""
    argv = sys.argv[1:] if argv is None else argv
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a letter that a terminal does not know ends nothing
    try:
        try:
            return _obey(argv)
        finally:
            sys.stdout.flush()  # a disk that is full says so here
    except KeyboardInterrupt:
        return _end(argv, "interrupted", 130)
    except BrokenPipeError:  # `| head` has seen enough
        _drop_output()
        return 141
    except (BuildError, OSError, ValueError) as error:
        if not _can_be_mended(error):
            raise
        return _end(argv, _line(error), 2)


def _open_streams() -> None:
    """Those that are closed, as by `>&-`, lead nowhere, here and in processes that we start: or the next file that is
    opened would get what is printed."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, way) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, way, closefd=False))


def _obey(argv: list[str]) -> int:
    try:
        os.getcwd()
    except FileNotFoundError:  # torch would die of it, without words
        raise ValueError("the folder that this was called in is gone") from None
    if "" in argv:  # of a variable that is not set; it would stand for a default or for this folder
        raise ValueError("argument: got '', allowed are none and one with letters")
    parser = Parser(prog="python -m pod", description=__doc__)
    if INSTALLED and argv[:1] and argv[0] in VERBS.keys() - set(ANYWHERE):
        raise ValueError(f"verb: got {argv[0]}, allowed without a clone are {', '.join(ANYWHERE)}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, (module, text) in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=text, description=text)
        if argv[:1] == [verb]:  # the others' modules stay unloaded
            import_module(module).configure(verb_parser)
    args = parser.parse_args(argv)
    return import_module(VERBS[args.verb][0]).run(args) or 0


def _can_be_mended(error: Exception) -> bool:
    """Whether this is an answer to what was asked: our own refusal, or the system's."""
    if isinstance(error, OSError):
        return error.errno is not None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    ours = Path(frame.f_code.co_filename).is_relative_to(PACKAGE)
    return isinstance(error, BuildError) or ours  # what a library refuses to our code is our mistake


def _line(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    _drop_output()  # it was about what is printed
    return error.strerror


def _drop_output() -> None:
    """Or Python would try once more to write it, and complain, when it ends."""
    with suppress(AttributeError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(argv: list[str], why: str, code: int) -> int:
    print(f"python -m pod {argv[0] if argv else ''}".rstrip() + f": {_in_one_line(why)}", file=sys.stderr)
    return code


def _in_one_line(text: str) -> str:
    """What somebody named, and we say again, may have several."""
    return " ".join(text.splitlines())


if __name__ == "__main__":
    if LOADING:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
