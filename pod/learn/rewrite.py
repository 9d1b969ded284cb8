"""CUDA text as the emulator's C++, line by line: checked pointers, counted loops, shared memory by name.

A reader writes CUDA as nvcc takes it. What csrc/learn/cell.h cannot say in C++ alone is put in here, and no line moves:
`float* x` becomes a Pointer, `__shared__ float s[64]` a Shared, a read `x[i]` a value, and each loop counts its rounds.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

TYPES = {
    "float": "float32", "double": "float64", "int": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "long long": "int64", "unsigned long long": "uint64", "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64",
    "uint64_t": "uint64", "size_t": "uint64", "half": "float16", "__half": "float16", "__nv_bfloat16": "bfloat16",
    "short": "int16", "bool": "bool",
}  # fmt: skip
VECTORS = {"float2", "float3", "float4", "double2", "int2", "int3", "int4", "uint2", "uint4"}
WORDS = {word for name in TYPES for word in name.split()} | VECTORS | {"char", "int8_t", "uint8_t", "dim3", "uint3"}
TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\\\n)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<directive>(?<![^\n])[ \t]*\#(?:\\\n|[^\n])*)"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)"""
    r"""|(?P<sign><<<|>>>|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|.)""",
    re.VERBOSE | re.DOTALL,
)
AFTER_NAME = ("=", "[", ",", "{", ";")  # in a declaration
ALIGNED = ("__align__", "alignas")
BINARY = set("+ - * / % < > <= >= == != && || | ^ & << >>".split())
ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"}
REGISTER = re.compile(
    r"\b(?:asm|__asm__)\s*(?:\b(?:volatile|__volatile__)\s*)?"
    r'\(\s*"mov\.u32\s+%0,\s*%%(smid|nsmid|laneid|warpid)\s*;"\s*:\s*"=r"\s*\(\s*(\w+)\s*\)\s*\)'
)
HOST = set(
    "main throw catch exit _exit _Exit quick_exit abort atexit fork vfork system popen posix_spawn posix_spawnp "
    "syscall pthread_create dlopen dlsym setjmp longjmp".split()
)
HOST_CALL = re.compile(
    r"(cuda[A-Z]|exec[lv]|pthread_|posix_|sem_|shm_)\w*|clone|kill|raise|signal|sigaction|alarm|u?sleep|nanosleep|pause"
    r"|wait(pid)?|getpid|setrlimit|ptrace|f?open|creat|f?close|f?read|f?write|f?truncate|(un)?link|remove|rename|mkdir"
    r"|rmdir|chmod|chown|chdir|chroot|f?puts|f?putc|putchar|[fd]printf|perror|[fs]?scanf|f?gets|getchar|(get|set|put)env"
    r"|m(un)?map|mprotect|s?brk|socket|connect|bind|listen|accept|send|recv|select|poll|s?rand|time|gettimeofday"
)
HOST_STD = set("thread jthread async mutex filesystem fstream ifstream ofstream cout cin cerr clog terminate".split())
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?:include[ \t]*([<\"].*?[>\"])|(line\b.*)).*$", re.MULTILINE)
HEADER = re.compile(r"<[a-z]\w*(/\w+)*(\.h(pp)?)?>|\"(cuda|mma|cooperative)\w*(\.h)?\"")


class NotCuda(ValueError):
    """Text that cannot be a cell, with the line where that shows."""

    def __init__(self, line: int, what: str, sure: bool = False) -> None:
        super().__init__(what)
        self.line, self.sure = line, sure  # sure: a compiler would only guess


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, e.g. `const float* x`: type "float", of a tensor."""

    name: str
    type: str
    pointer: bool
    const: bool

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.type}{'*' if self.pointer else ''} {self.name}"


@dataclass
class Token:
    kind: str
    text: str
    line: int
    after: str = ""  # put behind it
    before: str = ""
    referred: bool = False  # where a reference is bound to it
    shared: bool = False  # a __shared__ variable of one value, or a reference to an element


@dataclass(frozen=True)
class Cell:
    """What a text declares: its kernels with their parameters, and its shared variables by number."""

    text: str
    emulated: str
    kernels: dict[str, tuple[Parameter, ...]]
    shared: tuple[str, ...]


def read(text: str) -> Cell:
    tokens = list(_tokens(without_includes(text)))
    end = Token("end", "", 1 + text.count("\n"))
    _drop_volatile(tokens)
    code = [*(token for token in tokens if token.kind != "skip"), end, end]  # who looks ahead finds something
    _find_types(code)
    _read_constants(code)
    _refuse(code, text)
    _split_declarations(tokens, code)
    _read_array_parameters(tokens, code)
    code = [token for token in tokens if token.kind != "skip"] + [end, end]
    kernels = _kernels(code)
    shared: list[str] = []
    for i, token in enumerate(code):
        if token.text == "__shared__":
            _rewrite_shared(code, i, shared)
    macros = _macros(code)
    for macro in macros.values():
        macro.rewrite(macros)
    _rewrite_references(code)
    _rewrite_unset(code, macros)
    _rewrite_decays(code)
    _rewrite_reads(code, macros)
    _rewrite_pointers(code)
    _rewrite_loops(code)  # around all of a condition
    return Cell(text, REGISTER.sub(r'\2 = cell::special_register("\1")', _joined(tokens)), kernels, tuple(shared))


def without_includes(text: str) -> str:
    """CUDA's own headers are not here, and what a cell needs of them is."""
    return re.sub(r"^[ \t]*#[ \t]*include[ \t]*[<\"](cuda|mma|cooperative).*$", "", text, flags=re.MULTILINE)


def _tokens(text: str) -> Iterator[Token]:
    line = 1
    for match in TOKEN.finditer(text):
        yield Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")


def _drop_volatile(tokens: list[Token]) -> None:
    """The emulator reads memory each time that a text does, so the word changes nothing there."""
    for token in tokens:
        if token.text == "volatile":
            token.text, token.kind = "", "skip"


def _find_types(code: list[Token]) -> None:
    """CUDA's numbers, and what the text itself declares as types."""
    words = ("class", "typename", "struct", "union", "enum", "using")
    own = {_after_alignment(code, i + 1).text for i, t in enumerate(code[:-1]) if t.text in words}
    own |= {_typedef(code, i) for i, t in enumerate(code) if t.text == "typedef"}
    for token in code:
        if token.text in WORDS | own:
            token.kind = "type"


def _after_alignment(code: list[Token], i: int) -> Token:
    return code[_closing(code, i + 1) + 1] if code[i].text in ALIGNED else code[i]


def _typedef(code: list[Token], i: int) -> str:
    return next((code[k - 1].text for k in range(i + 2, len(code)) if code[k].text == ";"), "")


def _refuse(code: list[Token], text: str) -> None:
    if wrong := next((m for m in DIRECTIVE.finditer(text) if not HEADER.fullmatch(m[1] or "")), None):
        what = f"got {wrong[0].strip()}, allowed is #include of CUDA's or C++'s headers, as <cmath>"
        raise NotCuda(text.count("\n", 0, wrong.start()) + 1, what, sure=True)
    registers = {text.count("\n", 0, match.start()) + 1 for match in REGISTER.finditer(text)}
    barriers = [token.line for token in code if token.text == "__syncthreads"]
    if twice := next((line for line in barriers if barriers.count(line) > 1), 0):
        raise NotCuda(twice, "got two barriers, allowed is one in a line: by its line it is known", sure=True)
    for token in code:
        if token.text in ("asm", "__asm__") and token.line not in registers:
            what = 'got other asm, allowed is asm("mov.u32 %0, %%smid;" : "=r"(sm)), and so nsmid, laneid, warpid'
            raise NotCuda(token.line, what, sure=True)
        if token.text == "<<<":
            raise NotCuda(token.line, "the launch stands in Python: kernel[grid, block](...)", sure=True)
    _refuse_host(code)
    _refuse_variables(code)


def _refuse_host(code: list[Token]) -> None:
    own = {code[i].text for i, _ in _bodies(code)} | {code[i + 1].text for i, t in enumerate(code) if t.text == "auto"}
    words = [word for token in code for word in _words(token)]
    for before, word, after in zip([words[0], *words], words, [*words[1:], words[-1]], strict=False):
        called = HOST_CALL.fullmatch(word.text) and after.text == "(" and before.text not in (".", "->")
        if word.text in HOST or called and word.text not in own or before.text == "::" and word.text in HOST_STD:
            raise NotCuda(word.line, f"`{word.text}` is for the host; a cell has only what runs on the GPU", sure=True)


def _words(token: Token) -> list[Token]:
    """A macro's own, where it has some."""
    if token.kind != "directive":
        return [token]
    inside = _tokens(token.text.partition("#")[2])
    return [Token(t.kind, t.text, token.line + t.line - 1) for t in inside if t.kind != "skip"]


def _refuse_variables(code: list[Token]) -> None:
    """What lies outside of functions, or is static, all threads would share, and nobody would watch them."""
    declared, depth, first = _declared(code), 0, 0
    for i, token in enumerate(code):
        said = {t.text for t in code[first:i]}
        if i in declared and (depth == 0 or "static" in said) and code[i + 1].text in (";", "=", "[", ",", "{"):
            inside = sum((t.text == "(") - (t.text == ")") for t in code[first:i])  # of a function's parameters
            if not inside and not said & {"const", "constexpr", "template", "typedef", "using", "__shared__"}:
                what = f"got `{token.text}`, one for all threads, allowed are tensors and `__shared__` variables"
                raise NotCuda(token.line, what, sure=True)
        depth += (token.text in "([{") - (token.text in ")]}") if len(token.text) == 1 else 0
        if token.text in (";", "{", "}") or token.kind == "directive":
            first = i + 1


def _read_constants(code: list[Token]) -> None:
    """`__constant__ float w[2] = {1, 2};` is const. Without a value it waits for the host's, and there is no host."""
    for i, token in enumerate(code):
        if token.text != "__constant__":
            continue
        first = next((k for k in range(i, -1, -1) if code[k - 1].text in (";", "}") or k == 0), 0)
        last = next((k for k in range(i, len(code)) if code[k].text in (";", "{", "=")), i)
        if code[last].text not in ("{", "="):
            what = "`__constant__` is CUDA, but the emulator has it only with a value, as `__constant__ int n = 3;`"
            raise NotCuda(token.line, what, sure=True)
        is_const = {"const", "constexpr"} & {t.text for t in code[first:last]}
        token.text, token.kind = ("", "skip") if is_const else ("const", "word")


# ---------------------------------------------------------------- several names in one declaration


def _split_declarations(tokens: list[Token], code: list[Token]) -> None:
    """`float *p = x, *q = y, v = 0;` becomes `float *p = x, q = y; float v = 0;`: a Pointer is a type of its own."""
    for i, token in enumerate(code):
        if token.kind != "type" or i and code[i - 1].kind == "type":
            continue
        first = i + 1
        while code[first].kind == "type" or code[first].text == "const":
            first += 1
        begin = i - 1 if i and code[i - 1].text == "const" else i
        words, pointer = code[begin:first], code[first].text == "*"
        for comma in _commas(code, first + pointer):
            starred = code[comma + 1].text == "*"
            if starred:
                code[comma + 1].kind = "skip" if pointer else code[comma + 1].kind
                code[comma + 1].text = "" if pointer else "*"
            if starred != pointer:
                _end_declaration(tokens, code, begin, comma, words)
                pointer = starred


def _commas(code: list[Token], first: int) -> Iterator[int]:
    """Between the names of the declaration whose first name stands at `first`."""
    depth = 0
    if code[first].kind != "word" or code[first + 1].text not in AFTER_NAME:
        return
    for k in range(first, len(code) - 3):
        depth += (code[k].text in ("(", "[", "{")) - (code[k].text in (")", "]", "}"))
        body = code[k].text == "}" and code[k + 1].text not in (",", ";")
        if depth < 0 or depth == 0 and (code[k].text == ";" or body):
            return
        if depth == 0 and code[k].text == ",":
            name = k + 1 + (code[k + 1].text == "*")
            if code[name].kind != "word" or code[name + 1].text not in AFTER_NAME:
                return
            yield k


def _read_array_parameters(tokens: list[Token], code: list[Token]) -> None:
    """A function's `float s[64]` is `float* s`; of `float s[8][9]`, as of `float (*s)[9]`, each row has an end."""
    for name, body in _bodies(code):
        begin = max((k for k in range(name) if code[k].text in (";", "}")), default=0)
        if "__global__" in {token.text for token in code[begin:name]}:
            continue
        for i in range(name + 2, body):
            if code[i].kind == "word" and code[i - 1].kind == "type" and code[i + 1].text == "[":
                _read_array(tokens, code, i, i + 1)
    for i in range(len(code) - 5):
        star = [token.text for token in code[i : i + 5]]
        if code[i - 1].kind == "type" and (star[0], star[1], star[3], star[4]) == ("(", "*", ")", "["):
            code[i].text = code[i + 1].text = code[i + 3].text = ""
            code[i].kind = code[i + 1].kind = code[i + 3].kind = "skip"
            _read_array(tokens, code, i + 2, i + 4, rows=True)


def _read_array(tokens: list[Token], code: list[Token], name: int, opened: int, rows: bool = False) -> None:
    inner, at = [], opened
    while code[at].text == "[":
        close = _closing(code, at)
        inner.append("".join(f" {token.text}" for token in code[at + 1 : close]))
        for token in code[at : close + 1]:
            token.text, token.kind = "", "skip"
        at = close + 1
    sizes = "".join(f"[{size}]" for size in (inner if rows else inner[1:]))
    first = next(k for k in range(name, 0, -1) if code[k - 1].kind == "type" and code[k - 2].kind != "type")
    if sizes:
        code[first - 1].before, code[name].before = "cell::Rows<", f"{sizes}> "
    else:
        here = next(k for k, token in enumerate(tokens) if token is code[name])
        tokens.insert(here, Token("sign", "*", code[name].line))


def _end_declaration(tokens: list[Token], code: list[Token], begin: int, comma: int, words: list[Token]) -> None:
    if code[begin - 1].text == "(":  # of a `for`, or of a call's arguments
        what = "got pointers and numbers in one declaration, allowed are two declarations"
        raise NotCuda(code[comma].line, what, sure=True)
    code[comma].text = ";"
    at = next(k for k, token in enumerate(tokens) if token is code[comma])
    again = [Token(word.kind, f" {word.text}", code[comma].line) for word in words]
    tokens[at + 1 : at + 1] = again


# ---------------------------------------------------------------- kernels and their parameters


def _kernels(code: list[Token]) -> dict[str, tuple[Parameter, ...]]:
    found: dict[str, tuple[Parameter, ...]] = {}
    for i, token in enumerate(code):
        if token.text != "__global__":
            continue
        _refuse_place(code, i)
        name, parameters = _kernel(code, i)
        if name in found:
            raise NotCuda(token.line, f"got two kernels `{name}`, allowed is one of a name", sure=True)
        if name == "cell":  # the emulator's namespace
            raise NotCuda(token.line, "got a kernel `cell`, allowed is any other name", sure=True)
        found[name] = parameters
    if not found:
        raise NotCuda(1, "no kernel here: a kernel begins with `__global__ void`")
    return found


def _kernel(code: list[Token], i: int) -> tuple[str, tuple[Parameter, ...]]:
    start = next((k for k in range(i, len(code)) if code[k].text == "("), None)
    while start is not None and code[start - 1].text == "__launch_bounds__":
        start = next((k for k in range(_closing(code, start), len(code)) if code[k].text == "("), None)
    if start is None or code[start - 1].kind != "word" or "void" not in {t.text for t in code[i:start]}:
        raise NotCuda(code[i].line, "a kernel is written `__global__ void name(parameters) { ... }`")
    inside, parts = code[start + 1 : _closing(code, start)], [[]]
    for token in inside:
        parts.append([]) if token.text == "," else parts[-1].append(token)
    return code[start - 1].text, tuple(_parameter(part) for part in parts if part)


def _refuse_place(code: list[Token], i: int) -> None:
    """Python launches a kernel by its name alone: none of many types, or of a namespace."""
    if i and code[i - 1].text == ">":
        what = "got a kernel with template parameters, allowed is one without: it may call a __device__ template"
        raise NotCuda(code[i].line, what, sure=True)
    if any(code[k].text == "{" and code[k - 1].text != '"C"' and _closing(code, k) > i for k in range(i)):
        raise NotCuda(code[i].line, "got a kernel within braces, allowed is one outside of them", sure=True)


def _parameter(part: list[Token]) -> Parameter:
    words = [token.text for token in part if token.text not in ("const", "__restrict__", "restrict")]
    pointer, kind = "*" in words, " ".join(word for word in words[:-1] if word != "*")
    if words.count("*") > 1 or kind not in TYPES and not (pointer and kind in VECTORS):
        said = " ".join(token.text for token in part)
        raise NotCuda(
            part[0].line, f"parameter `{said}`: allowed are numbers and pointers to them, as `const float* x, int n`"
        )
    return Parameter(words[-1], kind, pointer, any(token.text == "const" for token in part))


def _closing(code: list[Token], i: int) -> int:
    """The bracket that closes the one at i."""
    pairs, depth = {"(": ")", "[": "]", "{": "}"}, 0
    opens, closes = code[i].text, pairs[code[i].text]
    for k in range(i, len(code)):
        depth += (code[k].text == opens) - (code[k].text == closes)
        if depth == 0:
            return k
    raise NotCuda(code[i].line, f"`{opens}` is never closed")


def calls_itself(text: str) -> tuple[str, int] | None:
    """The first function of a text that can come back to itself, also through others, and its line."""
    code = [token for token in _tokens(without_includes(text)) if token.kind != "skip"]
    found = {code[i].text: (code[i].line, code[first : _closing(code, first)]) for i, first in _bodies(code)}
    calls = {name: {token.text for token in body} & set(found) for name, (_, body) in found.items()}
    for name, (line, _) in found.items():
        reached, more = set(), calls[name]
        while more - reached:
            reached |= more
            more = set().union(*(calls[other] for other in reached))
        if name in reached:
            return name, line
    return None


def _bodies(code: list[Token]) -> Iterator[tuple[int, int]]:
    """Where each function's name stands, and the { of its body."""
    for i, token in enumerate(code[:-1]):
        if token.kind == "word" and code[i + 1].text == "(" and token.text not in ("if", "for", "while", "switch"):
            end = _closing(code, i + 1) + 1
            if end < len(code) and code[end].text == "{":
                yield i, end


# ---------------------------------------------------------------- what changes


def _rewrite_shared(code: list[Token], i: int, shared: list[str]) -> None:
    """`__shared__ float s[64], t;` as two variables of types that know their numbers."""
    end = next((k for k in range(i, len(code)) if code[k].text == ";"), None)
    if end is None:
        raise NotCuda(code[i].line, "`__shared__` without an end: a `;` is missing")
    begin = i + 1
    while code[begin].text in ALIGNED:  # every variable lies at a multiple of 16
        begin = _closing(code, begin + 1) + 1
    first = begin
    while code[first].kind == "type":
        first += 1
    kind, made, k = " ".join(token.text for token in code[begin:first]).replace("bool", "cell::Flag"), [], first
    while k < end:
        name, sizes = code[k].text, ""
        k += 1
        while k < end and code[k].text == "[":
            close = _closing(code, k)
            sizes += "[" + " ".join(token.text for token in code[k + 1 : close]) + "]"
            k = close + 1
        if not kind or not name.isidentifier() or k < end and code[k].text != ",":
            raise NotCuda(code[i].line, "shared memory is written `__shared__ float s[64];`, without a first value")
        made.append(f"cell::Shared<{kind}{sizes}, {len(shared)}> {name}")
        shared.append(name)
        if not sizes:
            _mark_uses(code, end, name)
        k += 1
    if i and code[i - 1].text == "extern":
        code[i - 1].text = ""
    for token in code[i:end]:
        token.text, token.kind = "", "gone"
    code[i].text = "; ".join(made)


def _mark_uses(code: list[Token], first: int, name: str) -> None:
    """Where a variable of one value is meant, up to the end of its block; not if a name within hides it."""
    depth, last = 0, first
    while last < len(code) and depth >= 0:
        depth += (code[last].text == "{") - (code[last].text == "}")
        last += 1
    uses = [k for k in range(first, last) if code[k].text == name]
    if not _declared(code).intersection(uses):
        for k in uses:
            code[k].shared = True


def _rewrite_references(code: list[Token]) -> None:
    """`float& v = x[i];` as `auto&& v = refer(x[i])`: an Element, or the thread's own; v is used as such."""
    for i, token in enumerate(code[:-4]):
        name, equals, first = code[i + 1 : i + 4]
        if token.text != "&" or name.kind != "word" or equals.text != "=" or not i:
            continue
        begin = i
        while code[begin - 1].kind == "type" or code[begin - 1].text in ("const", "auto"):
            begin -= 1
        element = first.kind == "word" and (first.shared or code[i + 4].text == "[") or first.text == "*"
        if begin == i or not element or code[end := _end_of_operand(code, i + 3)].kind == "end":
            continue
        if code[end + 1].text == ";":
            for word in code[begin : i + 1]:
                word.text, word.kind = "", "gone"
            token.text, first.referred = "auto&&", True
            first.before, code[end].after = "cell::refer(", ")"
            _mark_uses(code, end, name.text)


def _rewrite_loops(code: list[Token]) -> None:
    for i, token in enumerate(code[:-1]):
        if token.text == "goto":
            token.before = "for (cell::step();;) "
        if token.text not in ("while", "for") or code[i + 1].text != "(":
            continue
        first, last = i + 2, _closing(code, i + 1)
        if token.text == "for":
            ends = [k for k in range(first, last) if code[k].text == ";"]
            if len(ends) != 2:
                continue
            first, last = ends[0] + 1, ends[1]
        if first == last:
            code[last].before = "cell::step()" + code[last].before
        else:
            code[first].before = "cell::step() && (" + code[first].before
            code[last - 1].after += ")"


# ---------------------------------------------------------------- what nobody has set


def _rewrite_unset(code: list[Token], macros: dict[str, "Macro"]) -> None:
    """A variable that is declared without a value is `known(name)` where something is computed of it."""
    declared = _declared(code)
    valueless = {i for i in declared if code[i + 1].text in (";", ",") and code[i - 1].text not in ("*", "&")}
    names = {code[i].text for i in valueless}
    bools = _mark_bools(code, valueless)
    for i, token in enumerate(code[:-1]):
        if token.text not in names or token.kind != "word" or i in declared or token.shared or token.referred:
            continue
        if code[i - 1].text in (".", "->", "::") or code[i + 1].text in ("=", "[", "(", ".", "->", "::"):
            continue
        is_copied = token.text in bools and code[i - 1].text in ("=", "return")  # as a number, where it is stored
        if (is_copied or _is_computed(code, i, i)) and not _macro_writes(code, i, i, macros):
            token.before, token.after = "cell::known(", f', "{token.text}")'


def _mark_bools(code: list[Token], valueless: set[int]) -> set[str]:
    """Behind `bool seen;` in a function: what csrc/learn/cell.h says of it."""
    found = set()
    for _, body in _bodies(code):
        for i in range(body + 1, _closing(code, body)):
            if code[i].text == "bool" and code[i - 1].text in ("{", "}", ";", ":") and not _in_struct(code, i):
                end = next(k for k in range(i, len(code)) if code[k].text in (";", "end"))
                names = [code[k].text for k in range(i, end) if k in valueless]
                code[end].after += "".join(f" cell::unset({name});" for name in names)
                found.update(names)
    return found


def _in_struct(code: list[Token], i: int) -> bool:
    """Whether the innermost { that is open at i is a struct's."""
    depth = 0
    for k in range(i - 1, 1, -1):
        depth += (code[k].text == "}") - (code[k].text == "{")
        if depth < 0:
            return bool({code[k - 1].text, code[k - 2].text} & {"struct", "union", "class"})
    return False


def _is_computed(code: list[Token], first: int, last: int) -> bool:
    """Whether a number is made of it, or a choice, or it goes into a function that is not the cell's."""
    first, last = _with_brackets(code, first, last)
    before, after = code[first - 1], code[last + 1]
    if before.text == "&" and not _ends_operand(code[first - 2]):  # its address
        return False
    if before.text in BINARY or after.text in BINARY or after.text in ASSIGNS - {"="}:
        return True
    if before.text in ("++", "--", "!", "~") or before.text in ASSIGNS - {"="} or after.text == "?":
        return True
    if before.text not in ("(", ",") or after.text not in (")", ","):
        return False
    word = _called_with(code, first)
    return (word.kind == "word" or word.text in ("if", "while", "switch")) and not _keeps(code, word)


def _ends_operand(token: Token) -> bool:
    return token.kind in ("number", "word") and token.text != "return" or token.text in (")", "]")


def _called_with(code: list[Token], i: int) -> Token:
    """The word before the bracket that is open at i."""
    depth = 0
    for k in range(i - 1, 0, -1):
        depth += (code[k].text in (")", "]", "}")) - (code[k].text in ("(", "[", "{"))
        if depth < 0:
            return code[k - 1]
    return code[0]


def _keeps(code: list[Token], word: Token) -> bool:
    """Whether what is called need not read its arguments: a function of the cell may set them."""
    return word.text in ("sizeof", "alignof", "decltype", "asm", "volatile", "for") or word.text in _own_functions(code)


def _own_functions(code: list[Token]) -> set[str]:
    lambdas = {code[i + 1].text for i, token in enumerate(code[:-1]) if token.text == "auto"}
    return {code[name].text for name, _ in _bodies(code)} | lambdas


def _joined(tokens: list[Token]) -> str:
    return "".join(token.before + token.text + token.after for token in tokens)


def _rewrite_reads(code: list[Token], macros: dict[str, "Macro"]) -> None:
    """`x[i]` that is not written to becomes `value(x[i])`: a plain number, as C++ has it. Of a float4 that is a member,
    which may be written alone. An array learns its name, and a shared variable the line that it is used in."""
    declared = _declared(code)
    for i, token in enumerate(code[:-1]):
        previous = code[i - 1].text if i else ";"
        macro = macros.get(token.text)
        called = macro is not None and macro.is_place and (macro.names is None or code[i + 1].text == "(")
        if token.kind != "word" or not (code[i + 1].text == "[" or token.shared or called) or i in declared:
            continue
        if previous in (".", "->", "::") or token.text in ("return", "delete", "operator"):
            continue
        end = _closing(code, i + 1) if called and macro.names is not None else i
        while end + 1 < len(code) and code[end + 1].text == "[":
            end = _closing(code, end + 1)
        is_address = _is_address(code, i, end)
        kept = is_address or _macro_writes(code, i, end, macros)
        if code[end + 1].text == "." and code[end + 3].text != "(":
            token.before = "cell::member(" + token.before
            code[end].after += ", [](auto& whole) -> auto& { return whole"
            end += 2
            code[end].after += "; })"
        if not _written(code, i, end) and not kept and not token.referred:
            opens, closes = ("known", f', "{token.text}[...]")') if _is_computed(code, i, end) else ("value", ")")
            token.before, code[end].after = f"cell::{opens}(" + token.before, code[end].after + closes
        elif is_address and not called and not token.shared and _stays_in_cell(code, i, end):
            first, _ = _with_brackets(code, i, end)
            code[first - 1].before += f"cell::inside({token.text}, "
            code[end].after += ")"
        if not called:
            is_reference = token.shared and code[i + 1].text != "["
            token.text = f"cell::here({token.text})" if is_reference else f'cell::in({token.text}, "{token.text}")'


def _rewrite_decays(code: list[Token]) -> None:
    """`own + 2`, and the last word of `auto p = own`: an address that knows where the array of a thread's own ends."""
    declared = _declared(code)
    arrays = {code[i].text for i in declared if code[i + 1].text == "["}
    for i, token in enumerate(code[:-1]):
        if token.text not in arrays or token.kind != "word" or i in declared or code[i - 1].text in (".", "->", "&"):
            continue
        moved = code[i + 1].text in ("+", "-") and _may_be_ours(code, i)
        copied = (
            code[i - 1].text == "="
            and code[i + 1].text in (",", ";")
            and "auto" in (code[i - 3].text, code[i - 4].text)
        )
        if moved or copied:
            token.before, token.after = f"cell::inside({token.text}, ", ")"


def _written(code: list[Token], first: int, last: int) -> bool:
    first, last = _with_brackets(code, first, last)
    return code[last + 1].text in ASSIGNS or code[first - 1].text in ("++", "--")


def _is_address(code: list[Token], first: int, last: int) -> bool:
    first, _ = _with_brackets(code, first, last)
    before = code[first - 2]
    return code[first - 1].text == "&" and (
        before.text in (*"(,=?:{;", "return") or before.kind == "end" or _is_cast(code, first - 2)
    )


def _stays_in_cell(code: list[Token], first: int, last: int) -> bool:
    """Whether an address is kept, or goes to a function of the cell; others take plain pointers."""
    first, _ = _with_brackets(code, first, last)
    return _may_be_ours(code, first - 1)


def _may_be_ours(code: list[Token], i: int) -> bool:
    """Whether what begins at i may be a Pointer: in an expression, or as an argument of a function of the cell."""
    if code[i - 1].text not in ("(", ","):
        return True
    word = _called_with(code, i)
    return word.kind == "sign" or word.text in _own_functions(code)


def _with_brackets(code: list[Token], first: int, last: int) -> tuple[int, int]:
    """With those around it that change nothing."""
    while (code[first - 1].text, code[last + 1].text) == ("(", ")") and code[first - 2].kind in ("sign", "end"):
        first, last = first - 1, last + 1
    return first, last


# ---------------------------------------------------------------- macros


@dataclass
class Macro:
    """`#define name(names) body`; `names` is None without brackets."""

    directive: Token
    head: str
    names: list[str] | None
    tokens: list[Token]  # of its body

    @property
    def code(self) -> list[Token]:
        return _with_ends(self.tokens)

    @property
    def is_place(self) -> bool:
        """Whether it stands for an element, as `x[(i) * n]` or `(*(x + i))` do, so that it can be written to."""
        code = self.code
        first, last = 4, len(code) - 5
        while first < last and code[first].text == "(" and _closing(code, first) == last:
            first, last = first + 1, last - 1
        if first >= last or code[first].text != "*" and code[last].text != "]":
            return False
        if code[first].text == "*":
            return _end_of_operand(code, first + 1) == last
        return _end_of_operand(code, first) == last

    def writes(self, position: int, macros: dict[str, "Macro"]) -> bool:
        """Whether it writes to its argument, or takes its address."""
        if self.names is None or position >= len(self.names):
            return False
        code, name = self.code, self.names[position]
        uses = [k for k, token in enumerate(code) if token.text == name]
        return any(_written(code, k, k) or _is_address(code, k, k) or _macro_writes(code, k, k, macros) for k in uses)

    def rewrite(self, macros: dict[str, "Macro"]) -> None:
        """As what is outside of macros, unless it has only a part of something."""
        with suppress(NotCuda):
            tokens = [replace(token) for token in self.tokens]
            code = _with_ends(tokens)
            if not self.is_place:
                _rewrite_reads(code, macros)
            _rewrite_pointers(code, self.is_place)
            _rewrite_loops(code)
            self.directive.text = self.head + _joined(tokens)


def _with_ends(tokens: list[Token]) -> list[Token]:
    """Without what means nothing, and with room on both sides for whoever looks around."""
    ends = [Token("end", "", 1) for _ in range(8)]
    return [*ends[:4], *(token for token in tokens if token.kind != "skip"), *ends[4:]]


DEFINE = re.compile(r"(\s*#\s*define\s+(\w+)(?:\(([^)]*)\))?)(.*)", re.DOTALL)


def _macros(code: list[Token]) -> dict[str, Macro]:
    types, found = {token.text for token in code if token.kind == "type"}, {}
    for token in code:
        if token.kind == "directive" and (define := DEFINE.fullmatch(token.text)):
            head, name, names, body = define.groups()
            tokens = list(_tokens(body))
            for inner in tokens:
                inner.kind = "type" if inner.text in types | WORDS else inner.kind
            listed = None if names is None else [n.strip() for n in names.split(",")]
            found[name] = Macro(token, head, listed, tokens)
    return found


def _macro_writes(code: list[Token], first: int, last: int, macros: dict[str, Macro]) -> bool:
    """Whether it stands alone among the arguments of a macro that writes to it."""
    if code[first - 1].text not in ("(", ",") or code[last + 1].text not in (")", ","):
        return False
    depth = position = 0
    for k in range(first - 1, -1, -1):
        if depth == 0 and code[k].text == "(":
            macro = macros.get(code[k - 1].text)
            return macro is not None and macro.writes(position, {m: macros[m] for m in macros if macros[m] != macro})
        depth += (code[k].text in (")", "]", "}")) - (code[k].text in ("(", "[", "{"))
        position += depth == 0 and code[k].text == ","
        if code[k].text == ";" or depth < 0:
            return False
    return False


def _declared(code: list[Token]) -> set[int]:
    """Where the names stand that a declaration gives, as s and t in `float s[4] = {0}, t[2];`."""
    found = set()
    for i, token in enumerate(code):
        if token.kind != "type" or i and code[i - 1].kind == "type":
            continue
        first = i + 1
        while code[first].kind == "type" or code[first].text in ("const", "*", "&"):
            first += 1
        if code[first].kind != "word":  # a cast
            continue
        depth, expected = 0, True
        for k in range(first, len(code)):
            if code[k].text in (";", "{") and depth == 0 and not expected and code[k - 1].text != "=" or depth < 0:
                break
            if expected and code[k].kind == "word" and code[k].text != "const":
                found.add(k)
                expected = False
            expected |= depth == 0 and code[k].text == ","
            depth += (code[k].text in ("(", "[", "{")) - (code[k].text in (")", "]", "}"))
    return found


def _rewrite_pointers(code: list[Token], is_place: bool = False) -> None:
    """`const float* x` -> `cell::Pointer<const float> x`, and `*x` -> `cell::at(x)`."""
    for i, token in enumerate(code):
        if token.text == "reinterpret_cast":
            token.text = "cell::cast"
        if token.text in ("__restrict__",):
            token.text = ""
        if token.text != "*":
            continue
        k = i
        while k and (code[k - 1].kind == "type" or code[k - 1].text == "const"):
            k -= 1
        if any(word.kind == "type" for word in code[k:i]):
            code[k].before += "cell::Pointer<"
            token.text = ">"
        elif _is_operand(code, i):
            token.text = ""
            _put_at(code, i, is_place)
        elif code[i - 1].text == "auto":
            token.text = ""


def _is_operand(code: list[Token], i: int) -> bool:
    """Whether the `*` at i stands before what it points with, and not between two factors."""
    before = code[i - 1]
    if before.text == ")":
        return code[_opening(code, i - 1) - 1].text in ("if", "while", "for")
    return (
        before.kind in ("sign", "directive", "gone", "end")
        and before.text != "]"
        or before.text in ("return", "else", "do")
    )


def _is_cast(code: list[Token], close: int) -> bool:
    """Whether the bracket that closes here holds a type, as in `(const float4*)x`."""
    if code[close].text != ")":
        return False
    inside = code[_opening(code, close) + 1 : close]
    return bool(inside) and all(token.kind == "type" or token.text in ("const", "*", ">") for token in inside)


def _opening(code: list[Token], i: int) -> int:
    depth = 0
    for k in range(i, -1, -1):
        depth += (code[k].text == ")") - (code[k].text == "(")
        if depth == 0:
            return k
    raise NotCuda(code[i].line, "`)` was never opened")


def _put_at(code: list[Token], i: int, is_place: bool) -> None:
    end = _end_of_operand(code, i + 1)
    kept = is_place or code[i].referred or _written(code, i, end) or _is_address(code, i, end)
    opens, closes = ("cell::at(", ")") if kept else ("cell::value(cell::at(", "))")
    code[i + 1].before, code[end].after = opens + code[i + 1].before, code[end].after + closes


def _end_of_operand(code: list[Token], i: int) -> int:
    """Where what a `*` points with ends, as C++ has it: `*p++` is `*(p++)`, and `*p + 1` is `(*p) + 1`."""
    if code[i].text in ("++", "--", "*", "&"):
        return _end_of_operand(code, i + 1)
    if code[i].text == "(":
        end = _closing(code, i)
        if _is_cast(code, end):
            return _end_of_operand(code, end + 1)
    elif code[i].text.endswith("_cast") and code[i + 1].text == "<":
        end = _closing(code, next(k for k in range(i, len(code)) if code[k].text == "(" or code[k].kind == "end"))
    else:
        end = i
    while (after := code[end + 1].text) in ("(", "[", ".", "->", "++", "--"):
        end = _closing(code, end + 1) if after in "([" else end + 1 + (after in (".", "->"))
    return end
