"""The ladder of csrc/ladder taken apart: what is new in each rung, and a mistake in each that the emulator names."""

import shutil
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from pod.kernels import build, ladder
from pod.lab.mutate import Mistake
from pod.reference import attention

SHAPES = ((1, 70, 130, 1), (1, 1, 450, 1), (1, 1, 300, 3))  # sequences, tokens, context, splits where a rung can
HEADS = (2, 1)
FAR = 0.03  # from float64, where numbers are normally distributed; a right kernel stays below a fifth of it


def _mistake(rung: str, name: str, old: str, new: str, caught: str) -> Mistake:
    return Mistake(name, f"ladder/{ladder.RUNGS[rung].file}.cu", old, new, caught)


MISTAKES = {
    "row": _mistake("row", "the last CTA's threads without a row go on", "if (sequence >= p.sequences) return;", "",
                    "out of bounds: .* of q"),
    "tile": _mistake("tile", "no barrier before the block is read", "__syncthreads();  // and this one is there", "",
                     "race: .* 16 bytes of shared memory .* with no barrier between"),
    "mma": _mistake("mma", "no barrier before the next block is stored",
                    "__syncthreads();  // all have read the block before", "",
                    "race: overwrites 16 bytes of shared memory"),
    "ahead": _mistake("ahead", "one group too few is waited for", "ptx::cp_async_wait<kStages - 2>();",
                      "ptx::cp_async_wait<kStages - 1>();", "un-awaited copy: reads 16 bytes of shared memory"),
    "swizzle": _mistake("swizzle", "the row's number unbounded, so that rows overlap", "(c ^ r % 8)", "(c ^ r)",
                        "un-awaited copy: writes 16 bytes of shared memory"),
    "split": _mistake("split", "a part is counted before it is stored",
                      "__syncthreads();  // all of this part is stored", "",
                      "race: reads .* of parts .* with no release and acquire between"),
    "two": _mistake("two", "a ring of two, filled as if it had three stages", "fetch(block + (kStages - 1) * kKeys);",
                    "fetch(block + kStages * kKeys);", "race: |un-awaited copy: "),
    "wgmma": _mistake("wgmma", "no fence between the copies and wgmma", "ptx::fence_proxy_async();", "",
                      "wgmma reads .* with no fence.proxy.async between"),
    "tma": _mistake("tma", "nobody waits for the box", "control.kv.wait(place);", "", "un-awaited copy: "),
    "roles": _mistake("roles", "the producer does not ask whether the stage is free", "control.kv.acquire(to);", "",
                      "mbarrier reached by more than the 1"),
    "early": _mistake("early", "values are freed while a product still reads them",
                      "ptx::wgmma_wait<0>();  // P V is through", "", "before the wgmma was waited for"),
    "turns": _mistake("turns", "nobody passes the turn on", "turn.pass();", "", "deadlock: no warp can go on"),
}  # fmt: skip

# Rung 3 with rung 5's line: the swizzle without the copies ahead, on which it stands in the ladder.
SWIZZLED = Mistake(
    "swizzle without copies ahead", "ladder/3_mma.cu", "r * kRowBytes + c * 16", "r * kRowBytes + (c ^ r % 8) * 16"
)


def batch(sequences: int, tokens: int, context: int, heads: tuple[int, int] = HEADS, seed: int = 0):
    """q, k, v as the rungs take them, normally distributed."""
    import torch

    made = torch.Generator().manual_seed(seed)
    shapes = ((tokens, heads[0]), (context, heads[1]), (context, heads[1]))
    return tuple(torch.randn(sequences, *shape, ladder.HEAD_DIM, generator=made).bfloat16() for shape in shapes)


def exact(q, k, v):
    """float64."""
    sequences = [[x.double().numpy() for x in sequence] for sequence in zip(q, k, v, strict=True)]
    return np.stack([attention(*sequence)[0] for sequence in sequences])


def error(name: str) -> float:
    """How far a rung is from float64 on a small batch, relative."""
    q, k, v = batch(*SHAPES[0][:3])
    want = exact(q, k, v)
    return float(np.linalg.norm(ladder.attention(name, q, k, v).double().numpy() - want) / np.linalg.norm(want))


def broken(name: str, mistake: Mistake | None = None) -> str:
    """What becomes of a rung with its mistake, or with another one: the emulator's words, or how the result is."""
    return outcome(name, changed(name, mistake or MISTAKES[name]))


def changed(name: str, change: Mistake, device_type: str = "cpu"):
    """The library of a rung with a mistake, or with any other change."""
    with tempfile.TemporaryDirectory() as folder:
        csrc = Path(folder) / "csrc"
        shutil.copytree(build.CSRC, csrc, ignore=shutil.ignore_patterns("sm80", "sm90", "lean", "micro", "learn"))
        change.apply(csrc)
        return ladder.built(name, csrc / change.file, device_type)


def outcome(name: str, library=None) -> str:
    for sequences, tokens, context, splits in SHAPES:
        q, k, v = batch(sequences, tokens, context)
        try:
            out = ladder.attention(name, q, k, v, splits if ladder.RUNGS[name].splits else 1, given=library)
        except RuntimeError as report:
            return str(report)
        off = np.abs(out.double().numpy() - exact(q, k, v)).max()
        if not off < FAR:
            return "wrong result"
    return "right result"


# ---------------------------------------------------------------- what is new


def text_of(name: str) -> list[str]:
    return ladder.source(name).read_text(encoding="utf-8").splitlines()


def before(name: str) -> str | None:
    """The rung that this one was made from."""
    names = list(ladder.RUNGS)
    return {"row": None, "wgmma": "split"}.get(name, names[names.index(name) - 1])


def new_lines(name: str) -> list[int]:
    """Which lines of a rung's file the rung before does not have, comments and blank ones aside; all, of the first."""
    mine = text_of(name)
    if before(name) is None:
        return [i for i, line in enumerate(mine) if _is_code(line)]
    matcher = SequenceMatcher(None, text_of(before(name)), mine, autojunk=False)
    changed = [i for kind, _, _, first, last in matcher.get_opcodes() if kind != "equal" for i in range(first, last)]
    return [i for i in changed if _is_code(mine[i])]


def code_lines(name: str) -> int:
    return sum(map(_is_code, text_of(name)))


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("//")
