"""POD-Attention, explained and rebuilt: figures, claims and measurements from the command line."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from pod.kernels import BuildError

# Each verb lives in its own module, which offers configure(parser) and run(args) -> exit code.
VERBS = {
    "doctor": ("pod.doctor", "what this machine can do, and the command that mends each lack"),
    "figures": ("pod.figures.gallery", "draw figures and the gallery into figures/; --list names them all"),
    "claims": ("pod.claims", "the papers' claims beside our values, with verdicts"),
    "measure": ("pod.measure.run", "measure on this GPU into data/fresh/"),
    "compare": ("pod.measure.compare", "fresh measurements against the recorded ones"),
    "trace": ("pod.trace", "draw which CTA ran where and when"),
    "simulate": ("pod.serving.cli", "serve a workload on a modelled GPU; what the users feel"),
    "generate": ("pod.generate", "a small chat model answers, on this machine"),
    "notebooks": ("pod.notebooks", "re-execute the notebooks and save them in canonical form; --check only looks"),
    "readme": ("pod.readme", "refresh the generated part of README.md; --check only looks"),
}


class Parser(argparse.ArgumentParser):
    """Argparse, but a mistake costs the reader one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help tells more\n")


def available() -> dict[str, tuple[str, str]]:
    """The verbs whose module is here."""

    def exists(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:  # the package that would hold it is missing too
            return False

    return {verb: place for verb, place in VERBS.items() if exists(place[0])}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m pod", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, (module, text) in available().items():
        verb_parser = verbs.add_parser(verb, help=text, description=text)
        if argv[:1] == [verb]:  # the others' modules stay unloaded
            import_module(module).configure(verb_parser)
    if argv and argv[0] in VERBS.keys() - available():
        parser.error(f"{argv[0]} is not part of this version yet")
    args = parser.parse_args(argv)
    try:
        return import_module(VERBS[args.verb][0]).run(args) or 0
    except (ValueError, BuildError) as error:
        print(f"{parser.prog} {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.verb}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
