"""What went wrong in a cell, in plain words: which line of it, which threads, which element."""

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pod.learn import rewrite
from pod.learn.program import MOST_STACK, Report
from pod.learn.rewrite import Cell

PLACE = re.compile(r"at cell:(?P<line>\d+) in kernel \w+, CTA \((?P<x>\d+), (?P<y>\d+), (?P<z>\d+)\) on SM \d+, "
                   r"warp (?P<warp>\d+), lane (?P<lane>\d+)")  # fmt: skip
RACE = re.compile(r"race: (?P<does>\w+) \d+ bytes of (?P<memory>.+) at byte (?P<byte>\d+) that (?:CTA (?P<cta>\d+) )?"
                  r"warp (?P<warp>\d+) lane (?P<lane>\d+) (?P<did>wrote|read) at cell:(?P<line>\d+) ")  # fmt: skip
ELEMENT = re.compile(r"(?P<kind>outside|unwritten|unset|misaligned): (?P<does>reads|writes) (?P<name>@?\w+)"
                     r"\[(?P<index>-?\d+)\](?P<rest>(?:.* has (?P<size>\d+) elements)?.*)")  # fmt: skip
WORDS = {"bar.sync": "__syncthreads()"}
UNSET_NUMBER = 0xFEFEFEFE  # of 4 bytes: see program.UNSET
MOST_QUOTED = 200  # letters of a line


class CellError(Exception):
    """Something about a cell that its reader can mend: a notebook shows the words alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class CompileError(CellError):
    """The text is no CUDA yet; `line` is the cell's."""

    def __init__(self, text: str, line: int, what: str, column: int = 0) -> None:
        self.line = line
        super().__init__(f"line {line}: {what}\n{quoted(text, [line], column)}")


class Fault(CellError):
    """The kernel did what no kernel may.

    `lines` (of the cell), `threads`, `ctas`: of whoever met it, then of the other. `element`: memory and index.
    """

    def __init__(self, kind: str, what: str, text: str, lines=(), threads=(), ctas=(0,), element=None) -> None:
        self.kind, self.element = kind, element
        self.lines, self.threads, self.ctas = tuple(filter(None, lines)), tuple(threads), tuple(ctas)
        super().__init__("\n".join(filter(None, (what, quoted(text, sorted(set(self.lines)))))))


def quoted(text: str, lines: Iterable[int], column: int = 0) -> str:
    source = text.split("\n")  # as a compiler counts: a form feed ends no line
    first = max(0, column - MOST_QUOTED // 2) if column > MOST_QUOTED else 0
    shown = [f"{line:>5} | {_cut(source[line - 1], first)}" for line in lines if 0 < line <= len(source)]
    return "\n".join(shown + ([f"      | {' ' * (column - first - 1)}^"] if column else []))


def _cut(line: str, first: int) -> str:
    return line[first : first + MOST_QUOTED] + (" ..." if len(line) > first + MOST_QUOTED else "")


# ---------------------------------------------------------------- while it ran


@dataclass(frozen=True)
class _Told:
    """The emulator's text of a fault, and what else there is to know. `line`, `cta`, `thread`: of whoever met it."""

    text: str
    report: Report
    cell: Cell
    sizes: dict[str, int]  # bytes of an element, by the name of a tensor
    line: int
    cta: int
    thread: int
    grid: tuple[int, int, int] = (1, 1, 1)

    def fault(self, kind: str, what: str, **known) -> Fault:
        known = {"lines": [self.line], "threads": [self.thread], "ctas": [self.cta]} | known
        return Fault(kind, f"{kind}: {what}{'' if what.endswith('?') else '.'}", self.cell.text, **known)

    def element(self, memory: str, byte: int) -> tuple[str, int]:
        if memory != "shared memory":
            return memory, byte // self.sizes[memory]
        found = next(v for v in self.report.variables if v.offset <= byte < v.offset + max(v.bytes, 1))
        return found.name, (byte - found.offset) // found.element

    def place(self, name: str, index: int) -> str:
        """An element as the text has it."""
        shared = self.report.shared(name)
        return shared.place(index) if shared else f"{name}[{index}]"

    def called(self, cta: int | None = None) -> str:
        """A CTA as the kernel knows it: by x, or by all of its numbers."""
        n, (x, y, z) = self.cta if cta is None else cta, self.grid
        return f"CTA {n}" if y * z == 1 else f"CTA ({n % x}, {n // x % y}, {n // x // y})"

    @property
    def who(self) -> str:
        return f"thread {self.thread} of {self.called()}"


def of(report: Report, cell: Cell, sizes: dict[str, int], grid: tuple[int, int, int]) -> Fault:
    """The fault of a report."""
    place = PLACE.search(report.fault)
    numbers = {name: int(x) for name, x in place.groupdict().items()} if place else dict.fromkeys(PLACE.groupindex, 0)
    thread = 32 * numbers["warp"] + numbers["lane"]
    text = report.fault.removeprefix("emulator: ")
    cta = numbers["x"] + grid[0] * (numbers["y"] + grid[1] * numbers["z"])
    told = _Told(text, report, cell, sizes, numbers["line"], cta, thread, grid)
    for pattern, tell in TELLERS:
        if match := pattern.match(text):
            return tell(told, match)
    return told.fault("machine", text.partition("\n")[0])


def _race(told: _Told, match: re.Match) -> Fault:
    line, other = int(match["line"]), 32 * int(match["warp"]) + int(match["lane"])
    name, index = element = told.element(match["memory"], int(match["byte"]))
    me, them, place = f"thread {told.thread}", f"thread {other}", told.place(name, index)
    foreign = match["cta"] is not None
    ctas = told.cta, int(match["cta"]) if foreign else told.cta
    if foreign:
        me, them = (f"{who} of {told.called(cta)}" for who, cta in zip((me, them), ctas, strict=True))
    if match["does"] == "reads":
        what = f"{me} reads {place} in line {told.line}. {them} wrote it in line {line}"
    elif match["did"] == "wrote":
        what = f"{me} writes {place} in line {told.line}. {them} wrote it, too, in line {line}"
    elif _was_written(told, name, index):
        what = f"{me} overwrites {place} in line {told.line}. {them} reads the old value in line {line}"
    else:
        what = f"{them} reads {place} in line {line} before {me} has written it in line {told.line}"
    missing = "nothing orders two CTAs" if foreign else "no barrier stands between"
    if told.text.endswith(" heard"):
        missing = "an atomic said so, but no __threadfence() stands between that and this read"
    known = {"lines": (told.line, line), "threads": (told.thread, other), "ctas": ctas, "element": element}
    return told.fault("race", f"{what}, and {missing}", **known)


def _was_written(told: _Told, name: str, index: int) -> bool:
    """Whether the element had a value when it was first read: those of tensors have one from the start."""
    if name not in told.cell.shared:
        return True
    memory = -1 - told.report.shared(name).number
    first = next(e for e in told.report.events if (e.memory, e.element) == (memory, index))
    return first.kind != "r"


def _element(told: _Told, match: re.Match) -> Fault:
    """Of one element: it is not there, nobody has written it, or it is read as something larger."""
    name = told.cell.shared[int(match["name"][1:])] if match["name"].startswith("@") else match["name"]
    index = int(match["index"])
    kind, place = match["kind"], f"in line {told.line}"
    what = f"{told.who} {match['does']} {told.place(name, index)}"
    if kind == "outside":
        kind, what = "out of bounds", f"{what} {place}, but {_extent(told, name, int(match['size']))}"
        if 1 << 31 <= index < 1 << 32:
            what += ". An unsigned number that falls below 0 is so large"
        if index % (1 << 32) == UNSET_NUMBER:
            what += ". So large is here what nobody has set: an index was used before it had a value"
    elif kind == "unwritten":
        what = f"{what} {place}, and nobody {'has written it before' if match['rest'] else 'ever writes it'}"
    elif kind == "unset":
        what = f"{what} {place}, but the value comes from a variable that nobody has set"
    else:
        what = f"{what}{match['rest']} {place}; its address must be a multiple of that"
    return told.fault(kind, what, element=(name, index))


def _extent(told: _Told, name: str, size: int) -> str:
    if size:
        return f"{name} has {size} elements, {told.place(name, 0)} to {told.place(name, size - 1)}"
    ask = ": kernel[grid, block, bytes] says how much shared memory there is"
    return f"{name} is empty{ask if name in told.cell.shared else ''}"


def _row(told: _Told, match: re.Match) -> Fault:
    """Past the end of a row, but not of all."""
    number, flat, index, size = map(int, match.groups())
    name = told.cell.shared[number]
    row = told.place(name, flat).rpartition("[")[0]
    what = f"{told.who} uses {row}[{index}] in line {told.line}, but that row has {size} elements"
    return told.fault("out of bounds", f"{what}, {row}[0] to {row}[{size - 1}]", element=(name, flat + index))


def _own(told: _Told, match: re.Match) -> Fault:
    """`size`: a number, or a type as 'float [4]'."""
    size, name = int(re.search(r"\d+", match["size"])[0]), match["name"]
    called = name or "an array of its own"
    what = f"uses {name}[{match['index']}]" + ("" if name else f" of {called}")
    what = f"{told.who} {what} in line {told.line}, but {called if name else 'that'} has {size} elements"
    return told.fault("own array", f"{what}, {name}[0] to {name}[{size - 1}]")


def _unset(told: _Told, match: re.Match) -> Fault:
    name = match["name"].removesuffix("[...]")
    what = f"an element of `{name}`" if name != match["name"] else f"`{name}`"
    return told.fault("unset", f"{told.who} computes with {what} in line {told.line}, and nobody has set it")


def _shift(told: _Told, match: re.Match) -> Fault:
    what = f"{told.who} shifts by {match['by']} in line {told.line}; a number of {match['bits']} bits is shifted by"
    return told.fault("shift", f"{what} 0 to {int(match['bits']) - 1}")


def _apart(told: _Told, match: re.Match) -> Fault:
    mine, theirs = (WORDS.get(word, word) for word in (match["mine"], match["theirs"]))
    what = f"thread {told.thread} is at {mine} in line {told.line}, while others of its warp wait at {theirs}"
    what += f" in line {match['line']}. All 32 lanes of a warp must come to the same one"
    return told.fault("barrier", what, lines=(told.line, int(match["line"])))


def _stuck(told: _Told, match: re.Match) -> Fault:
    """Who waits where, and who will never come. Of a divergence, the warp says why; else the whole CTA."""
    rows = [(cta, t, state, line) for cta, t, state, line in told.report.threads]
    cta = next(cta for cta, _, state, _ in rows if state in WAITS)
    warp = told.thread // 32 if match["barrier"] else None
    rows = [row for row in rows if row[0] == cta and warp in (None, row[1] // 32)]
    barrier = WORDS.get(match["barrier"] or "bar.sync", match["barrier"])
    lines = sorted({line for *_, state, line in rows if state in WAITS})
    waiting = {line: _threads(t for _, t, state, at in rows if state in WAITS and at == line) for line in lines}
    missing = [t for _, t, state, _ in rows if state == "done"]
    until = "" if missing and barrier == WORDS["bar.sync"] else " for ever"  # it awaits none that has ended
    waits = [f"{who} wait{'s' * who.startswith('thread ')}{until} at" for who in waiting.values()]
    what = "; ".join(f"{who} {barrier} in line {line}" for who, line in zip(waits, waiting, strict=True))
    if missing:
        never = _threads(missing)
        what += f". {never.capitalize()} never reached it, and {'have' if len(missing) > 1 else 'has'} left the kernel"
    return told.fault("barrier", what, lines=lines, threads=missing, ctas=[cta])


def _threads(numbers: Iterable[int]) -> str:
    """ "thread 3", "threads 0 to 31, 64", or so."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    said = [f"{a} to {b}" if b > a else str(a) for a, b in spans]
    shown = said if len(said) <= 4 else [*said[:3], "..."]
    return f"thread{'s' if spans[0][0] != spans[-1][1] else ''} {', '.join(shown)}"


def _endless(told: _Told, match: re.Match) -> Fault:
    rounds = f"{int(match['rounds']):,} rounds of all threads" if match["rounds"] else "a second of the machine's time"
    return told.fault("endless", f"line {told.line} still goes round after {rounds}. What should end it?")


def _late(told: _Told, match: re.Match) -> Fault:
    line = int(match["line"])
    what = (
        f"the kernel did not end within {match['seconds']} s, so it was stopped{f' after line {line}' if line else ''}"
    )
    return told.fault("endless", f"{what}: a loop without an end, or more threads than one CPU can be", lines=[line])


STRAYED = "It left an array of a thread's own, or its functions call each other for ever"
ROOM = "128 KiB"  # of a thread's stack: Stack::kBytes of csrc/emulate/fiber.h


def _crash(told: _Told, match: re.Match) -> Fault:
    line, code = int(match["line"]), -int(match["code"])
    aborted = code == signal.SIGABRT and "assert" in told.cell.text  # the machine itself ends so when a stack is full
    if code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT) and not aborted and (deep := _deep(told)):
        return deep
    why = "An assert did not hold" if aborted else STRAYED
    what = f"the kernel's program ended{f' after line {line}' if line else ''}. {why}"
    return told.fault("crash", what, lines=[line])


def _deep(told: _Told) -> Fault | None:
    if not (found := rewrite.calls_itself(told.cell.text)):
        return None
    name, line = found
    what = f"`{name}` in line {line} calls itself, or others that call it, too often for a thread's stack of {ROOM}"
    return told.fault("stack", f"{what}. What ends it, and how soon?", lines=[line])


def _says(kind: str, words: str) -> Callable[[_Told, re.Match], Fault]:
    """One sentence, of who, the line, and what the emulator named."""
    return lambda told, match: told.fault(kind, words.format(who=told.who, line=told.line, **match.groupdict()))


WAITS = ("waiting", "meeting")
TELLERS = (
    (RACE, _race),
    (ELEMENT, _element),
    (re.compile(r"row: uses (\d+) (-?\d+) (-?\d+) (\d+)"), _row),
    (re.compile(r"own: uses (?P<name>\S*)\[(?P<index>-?\d+)\], of (?P<size>.*)"), _own),
    (re.compile(r"unset: uses (?P<name>\S+)"), _unset),
    (re.compile(r"zero: divides (?P<number>-?\d+)"),
     _says("division", "{who} divides {number} by zero in line {line}. A GPU would go on, with any number")),
    (re.compile(r"overflow: (?P<what>.*) in '(?P<type>.*)'"),
     _says("overflow", "{who} computes {what} in line {line}, which is no {type} any more")),
    (re.compile(r"shift: by (?P<by>-?\d+) of (?P<bits>\d+)"), _shift),
    (re.compile(r"atomic: "),
     _says("atomic", "line {line} has an atomic on a thread's own variable, which nobody else sees")),
    (re.compile(r"the emulator knows only whole warps"),
     _says("mask", "the mask in line {line} leaves lanes out. A GPU may do that, the emulator knows only whole warps: "
           "say 0xffffffff, where all 32 lanes come")),
    (re.compile(r"divergence: this lane is at (?P<mine>\S+) while .* wait at (?P<theirs>\S+) "
                r"\(cell:(?P<line>\d+)\)"), _apart),
    (re.compile(r"divergence: .* wait for them at (?P<barrier>\S+)|deadlock"), _stuck),
    (re.compile(r"steps: .* after (?P<rounds>\d+)|endless"), _endless),
    (re.compile(r"time: did not end within (?P<seconds>\d+) s after line (?P<line>\d+)"), _late),
    (re.compile(r"crash: ended with (?P<code>-?\d+) after line (?P<line>\d+)"), _crash),
    (re.compile(r"null"),
     _says("out of bounds", "{who} uses in line {line} a pointer that points nowhere: is a tensor empty?")),
    (re.compile(r".*bad_alloc"), _says("memory", "the kernel asked for more memory than there is")),
)  # fmt: skip


# ---------------------------------------------------------------- while it was compiled


COMPLAINT = re.compile(r"^cell:(\d+)(?::(\d+))?: (?:fatal )?error: (.*)$|^cell\((\d+)\): error: (.*)$", re.MULTILINE)
UNKNOWN = re.compile(r"'(\w+)' (?:was not declared|does not name a type|is not a namespace|has not been declared)")
GPU_ONLY = set(
    "clock clock64 "
    "cooperative_groups nvcuda __activemask __managed__ "
    "__match_any_sync __nanosleep __reduce_add_sync __trap".split()
)
UNSET = re.compile(r"(?:at cell:(\d+):\d+:\n.+|^cell:(\d+):\d+): error: '([^']+)' is used uninitialized", re.MULTILINE)
NO_BODY = re.compile(r"undefined reference to `([^'(]+)|Undefined symbols[^\"]*\"_?([^\"(]+)")
READ_ONLY = re.compile(r"assignment of read-only location '\*? ?\(?(?:\([^)]*\))?(\w+).*'")
REFERENCE = re.compile(r"cannot bind (?:non-const )?lvalue reference|non-const lvalue reference .* cannot bind")
HALF = re.compile(r"'(?:half|__half|__nv_bfloat16)'")
OURS = ((r"cell::Pointer<(.*?)\s*>(?:::Pointer\b)?", r"\1*"), (r"cell::Element<(.*?)>", r"\1"), (r"cell::", ""))


def complaint(said: str, text: str, before: str = "") -> CompileError:
    """The first of the compiler's complaints, about a line of the cell and in the reader's types."""
    if big := re.search(r"cell:(\d+):\d+: error: the frame size of (\d+) bytes", said):
        what = f"stack: got {int(big[2]):,} bytes of a thread's own variables, allowed are {MOST_STACK:,}"
        return CompileError(text, int(big[1]), f"{what} (in the function that ends here)")
    if unset := UNSET.search(said):
        return CompileError(text, int(unset[1] or unset[2]), f"`{unset[3]}` is used before it is set")
    if (found := NO_BODY.search(said)) and (name := found[1] or found[2]):
        line = next((n for n, line in enumerate(text.split("\n"), 1) if re.search(rf"\b{re.escape(name)}\b", line)), 1)
        return CompileError(text, line, f"`{name}` has no body: nothing says what it does")
    if found := COMPLAINT.search(said):
        line, column, what = int(found[1] or found[4]), int(found[2] or 0), found[3] or found[5]
        for theirs, ours in OURS:
            what = re.sub(theirs, ours, what)
        what = READ_ONLY.sub(r"`\1` points at what is read-only, const", what)
        if HALF.search(what):
            what = "CUDA computes with halves, the emulator does not: take __half2float(x), go back by __float2half(v)"
        if before and REFERENCE.search(what):
            what = "a reference to an element goes from no function to another: hand over a pointer, as `float* p`"
        if before and "Rows<" in what:
            what = "a pointer to rows points into shared memory only. For an array of a thread's own say `float* p`"
        if (name := UNKNOWN.search(what)) and name[1] in GPU_ONLY:
            what = f"`{name[1]}` is CUDA, but the emulator does not have it"
        return CompileError(text, line, before + re.sub(r" \[-[Wf].*", "", what), 0 if before else column)
    inside = re.search(r"^cell:(\d+):\d+:   required from", said, re.MULTILINE)
    # the lines around the cell's want it otherwise
    foreign = re.search(r"^.+?: (?:fatal )?error: (.*)$", said, re.MULTILINE)
    what = (foreign[1] if foreign else said.strip().splitlines()[-1]).removeprefix("static assertion failed: ")
    before = "" if what.startswith("shared memory of a fixed size") else before  # nor can nvcc
    return CompileError(text, int(inside[1]) if inside else 1, before + what)
