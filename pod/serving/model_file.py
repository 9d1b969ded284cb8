"""A GGUF file of the Llama family: shape, weights, tokenizer and chat template. What cannot be read rightly is refused.

`gguf` reads the file, `tokenizers` splits text as the model was taught to, jinja2 fills the chat template in.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import inf, prod
from pathlib import Path

from pod.serving import header
from pod.serving.shapes import Shape

TOP = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
LAYER = {
    "attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
    "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"  # how Llama 3.1 and later scale: a factor for each pair of numbers that turns
READ = {f"llama.{name}" for name in (
    "block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.freq_base", "rope.dimension_count", "rope.scaling.type",
)}  # fmt: skip
COUNTS_OF_TOKENS = ("context_length", "vocab_size")
SIZES = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
         "attention.key_length", *COUNTS_OF_TOKENS)  # fmt: skip
MOST, MOST_TOKENS = 1 << 20, 1 << 22
ENDS = ("bos", "eos", "eot", "eom")
TEAR = "\ufdd0"  # a code point that Unicode leaves to programs; in what people write it goes
CONTROL, USER_DEFINED = 3, 4  # GGUF's numbers for tokens that no text contains, and for words that are never split
# What fields must be, so that no reader of them stumbles: a test, and its words.
TEXT = (lambda x: isinstance(x, str), "text")
TEXTS = (lambda x: isinstance(x, list) and set(map(type, x)) == {str}, "a list of texts")
KINDS = (lambda x: isinstance(x, list) and set(map(type, x)) == {int}, "a list of integers")
ABOVE_0 = (lambda x: type(x) in (int, float) and 0 < x < inf, "a number above 0")
ALLOWED = {
    "general.architecture": TEXT, "tokenizer.ggml.model": TEXT, "tokenizer.ggml.pre": TEXT,
    "tokenizer.chat_template": TEXT, "tokenizer.ggml.tokens": TEXTS, "tokenizer.ggml.merges": TEXTS,
    "tokenizer.ggml.token_type": KINDS, "llama.rope.freq_base": ABOVE_0,
    "llama.attention.layer_norm_rms_epsilon": ABOVE_0,
}  # fmt: skip
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


@dataclass(frozen=True)
class Gguf:
    path: Path

    @cached_property
    def reader(self):
        from gguf import GGUFReader

        header.check(self.path)
        try:
            return GGUFReader(self.path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:  # half a download, or no GGUF at all
            raise ValueError(f"{self.path}: got no whole GGUF file ({error})") from None

    def field(self, name: str, default=None):
        found = self.reader.fields.get(name)
        if found is None and default is None:
            raise ValueError(f"{self.path.name}: got a file without {name}, allowed are files that have it")
        if found is None:
            return default
        try:
            value = found.contents()
        except UnicodeDecodeError:
            raise ValueError(f"{name}: got bytes that are no UTF-8 in {self.path.name}, allowed is text") from None
        right, words = ALLOWED.get(name, (lambda value: True, ""))
        if not right(value):
            raise ValueError(f"{name}: got {value!r:.60} in {self.path.name}, allowed is {words}")
        return value

    @cached_property
    def tensors(self) -> dict:
        return {tensor.name: tensor for tensor in self.reader.tensors}

    # ------------------------------------------------------------ the model

    @cached_property
    def shape(self) -> Shape:
        self._check_fields()
        of = lambda name, default=None: self.field(f"llama.{name}", default)  # noqa: E731
        hidden, heads = of("embedding_length"), of("attention.head_count")
        shape = Shape(
            key=self.path.stem.lower(), name=self.path.stem, layers=of("block_count"), hidden=hidden, q_heads=heads,
            kv_heads=of("attention.head_count_kv", heads), head_dim=of("attention.key_length", hidden // heads),
            ffn=of("feed_forward_length"), vocab=of("vocab_size", len(self.words)),
            tied="output.weight" not in self.tensors, context=of("context_length"),
            rope_base=of("rope.freq_base", 10000.0), rope_factors=self._rope_factors(),
            norm_eps=of("attention.layer_norm_rms_epsilon"),
        )  # fmt: skip
        self._check_heads(shape)
        self._check_tensors(shape)
        return shape

    def _check_sizes(self) -> None:
        """Before anything is made of that size."""
        for name in SIZES:
            size, most = self.field(f"llama.{name}", 1), MOST_TOKENS if name in COUNTS_OF_TOKENS else MOST
            if not isinstance(size, int) or not 1 <= size <= most:
                raise ValueError(f"llama.{name}: got {size!r:.60} in {self.path.name}, allowed are integers from 1 to "
                                 f"{most:,}")  # fmt: skip
        if (layers := self.field("llama.block_count")) > len(self.tensors):
            raise ValueError(f"llama.block_count: got {layers:,} in {self.path.name}, allowed are as many as it has "
                             f"tensors, {len(self.tensors)}")  # fmt: skip

    def _check_fields(self) -> None:
        """Whatever a model does that ours does not, it says in a field. Zero means that it does not do it."""
        if (kind := self.field("general.architecture")) != "llama":
            raise ValueError(f"architecture: got {kind!r} in {self.path.name}, allowed is 'llama'")
        if (kind := self.field("llama.rope.scaling.type", "none")) != "none":
            raise ValueError(f"RoPE scaling: got {kind!r} in {self.path.name}, allowed are none and the factors of "
                             f"Llama 3, {ROPE_FACTORS}")  # fmt: skip
        for name in self.reader.fields:
            if name.startswith("llama.") and name not in READ and self.field(name):
                got = f"{self.field(name)!r:.60}"
                raise ValueError(f"{name}: got {got} in {self.path.name}, allowed is a file without it")
        self._check_sizes()
        for end in ENDS:
            token = self.field(f"tokenizer.ggml.{end}_token_id", 0)
            if type(token) is not int or not 0 <= token < len(self.words):
                raise ValueError(f"tokenizer.ggml.{end}_token_id: got {token!r:.60} in {self.path.name}, allowed are 0 "
                                 f"to {len(self.words) - 1}, one of its words")  # fmt: skip

    def _check_heads(self, shape: Shape) -> None:
        for name in ("attention.value_length", "rope.dimension_count"):
            if (size := self.field(f"llama.{name}", shape.head_dim)) != shape.head_dim:
                raise ValueError(f"llama.{name}: got {size} in {self.path.name}, allowed is {shape.head_dim}, the size "
                                 "of a head of its keys")  # fmt: skip
        if shape.rope_factors and len(shape.rope_factors) != shape.head_dim // 2:
            raise ValueError(
                f"{ROPE_FACTORS}: got {len(shape.rope_factors)} factors, allowed are {shape.head_dim // 2}"
            )

    def _check_tensors(self, shape: Shape) -> None:
        """A bias that is not added, or an expert that is not asked, would make a model that is only nearly right."""
        ours = {f"{name}.weight" for name in TOP.values()} | {ROPE_FACTORS}
        ours |= {f"blk.{i}.{name}.weight" for i in range(shape.layers) for name in LAYER.values()}
        if unknown := [name for name in self.tensors if name not in ours]:
            raise ValueError(f"tensors: got {unknown[0]} in {self.path.name}, allowed are those of a plain Llama")

    def _rope_factors(self) -> tuple[float, ...]:
        return tuple(self._tensor(ROPE_FACTORS).tolist()) if ROPE_FACTORS in self.tensors else ()

    def _tensor(self, name: str):
        """Out of its 4 or 8 bits."""
        import torch
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        try:
            return torch.tensor(dequantize(tensor.data, tensor.tensor_type)).float()
        except NotImplementedError:
            raise ValueError(f"{name}: got {tensor.tensor_type.name}, allowed are the kinds that gguf reads") from None

    def weights(self, name: str, size: tuple[int, ...]):
        """A source for pod.serving.model.Llama: the tensor by our name."""
        place, _, kind = name.rpartition(".")
        stored = f"{place.replace('layers', 'blk')}.{LAYER[kind]}.weight" if place else f"{TOP[kind]}.weight"
        if stored not in self.tensors:
            raise ValueError(f"weights: {self.path.name} lacks {stored}, of shape {size}")
        weight = self._tensor(stored)
        if weight.numel() != prod(size):
            return weight  # the model says what does not fit
        weight = weight.view(size)
        return _unpaired(weight, self.shape) if kind in ("q", "k") else weight

    # ------------------------------------------------------------ text and tokens

    @cached_property
    def words(self) -> list[str]:
        return self.field("tokenizer.ggml.tokens")

    @cached_property
    def kinds(self) -> list[int]:
        kinds = self.field("tokenizer.ggml.token_type")
        if len(kinds) != len(self.words):
            raise ValueError(f"tokenizer.ggml.token_type: got {len(kinds)} in {self.path.name}, allowed are "
                             f"{len(self.words)}, one a word")  # fmt: skip
        return kinds

    @cached_property
    def tokenizer(self):
        """Byte-pair merges over bytes, in the pieces that the file names."""
        from tokenizers import AddedToken, Tokenizer, decoders, models

        if (kind := self.field("tokenizer.ggml.model")) != "gpt2":
            raise ValueError(f"tokenizer: got {kind!r} in {self.path.name}, allowed is 'gpt2', byte-pair merges")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        vocabulary, of_llama3 = {word: i for i, word in enumerate(self.words)}, self._of_llama3
        try:
            tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=of_llama3))
        except Exception as error:  # the library has no narrower one
            raise ValueError(f"tokenizer: got merges in {self.path.name} that do not fit its words "
                             f"({f'{error} '.splitlines()[0].strip()})") from None  # fmt: skip
        self._check_letters()
        tokenizer.pre_tokenizer, tokenizer.decoder = self._split(), decoders.ByteLevel()
        for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
            whole = [word for word, k in zip(self.words, self.kinds, strict=True) if k == kind]
            tokenizer.add_tokens([AddedToken(word, normalized=False, special=special) for word in whole])
        return tokenizer

    def _check_letters(self) -> None:
        """Or an answer would end at the first such word."""
        plain = (word for word, kind in zip(self.words, self.kinds, strict=True) if kind not in (CONTROL, USER_DEFINED))
        if strange := set().union(*plain) - BYTES.keys():
            raise ValueError(f"tokenizer: got a word with {min(strange)!r} in {self.path.name}, allowed are letters "
                             "that stand for bytes")  # fmt: skip

    @property
    def _of_llama3(self) -> bool:
        return self.field("tokenizer.ggml.pre", "none") in ("llama-bpe", "llama3")

    def _split(self):
        from tokenizers import Regex, pre_tokenizers

        plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
        pieces = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ways = {
            "gpt-2": plain,
            "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
            "llama-bpe": pre_tokenizers.Sequence([pieces, bytes_alone]),
            "llama3": pre_tokenizers.Sequence([pieces, bytes_alone]),
        }
        if (name := self.field("tokenizer.ggml.pre", "none")) not in ways:
            raise ValueError(f"tokenizer.ggml.pre: got {name!r} in {self.path.name}, allowed are {', '.join(ways)}")
        return ways[name]

    @property
    def stop(self) -> int:
        """The token that ends an answer."""
        return self.field("tokenizer.ggml.eos_token_id")

    @property
    def stops(self) -> list[int]:
        """All tokens that end an answer; a file may have another one for the end of a turn."""
        names = ("eot_token_id", "eom_token_id")
        return [self.stop, *(self.field(f"tokenizer.ggml.{name}", self.stop) for name in names)]

    def tokens(self, text: str) -> list[int]:
        """Plain text as the model was taught to read it."""
        begins = self.field("tokenizer.ggml.add_bos_token", self._of_llama3)
        begin = [self.field("tokenizer.ggml.bos_token_id")] if begins else []
        return begin + self.tokenizer.encode(text).ids

    def conversation(self, messages: Sequence[dict]) -> list[int]:
        """A chat up to where the model is to speak, as the file's own template writes it. What people write stays
        text, also where it spells a token that begins or ends a turn: or anybody could write the system's turn."""
        from jinja2 import TemplateError

        torn = [{key: self._torn(value) for key, value in message.items()} for message in messages]
        try:
            text = self.template.render(messages=torn, add_generation_prompt=True, **self._ends())
        except (TemplateError, TypeError) as error:
            raise ValueError(f"messages: got some that the chat template refuses ({error})") from None
        return [token for piece in text.split(TEAR) for token in self.tokenizer.encode(piece).ids]

    def _torn(self, text: str) -> str:
        """With a tear in each word that the tokenizer would take for a token of its own."""
        while (torn := self._control.sub(lambda word: f"{word[0][0]}{TEAR}{word[0][1:]}", text)) != text:
            text = torn  # two such words may overlap
        return text

    @cached_property
    def _control(self) -> re.Pattern:
        """Of two letters and more, as one cannot be torn."""
        words = [word for word, kind in zip(self.words, self.kinds, strict=True) if kind == CONTROL and len(word) > 1]
        return re.compile("|".join(map(re.escape, words)) or r"(?!)")

    def chat(self, prompt: str) -> list[int]:
        """One question."""
        return self.conversation([{"role": "user", "content": prompt}])

    @property
    def has_template(self) -> bool:
        return "tokenizer.chat_template" in self.reader.fields

    @cached_property
    def template(self):
        """Jinja in its sandbox, with the two functions that templates of this kind call."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])  # fmt: skip
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            return sandbox.from_string(self.field("tokenizer.chat_template"))
        except TemplateError as error:
            raise ValueError(f"chat template: got one of {self.path.name} that Jinja cannot read ({error})") from None

    def _ends(self) -> dict[str, str]:
        ids = {side: self.field(f"tokenizer.ggml.{side}_token_id", -1) for side in ("bos", "eos")}
        return {f"{side}_token": self.words[i] if i >= 0 else "" for side, i in ids.items()}

    def text(self, tokens: Iterable[int]) -> str:
        return self.tokenizer.decode(list(tokens))

    def piece(self, token: int) -> bytes:
        """The bytes of one token; a letter may be spread over several."""
        if token >= len(self.words) or self.kinds[token] == CONTROL:
            return b""
        if self.kinds[token] == USER_DEFINED:
            return self.words[token].encode()
        return bytes(BYTES[letter] for letter in self.words[token])


def _bytes_of_letters() -> dict[str, int]:
    """Byte-level vocabularies write every byte as one visible letter: itself, or one from 256 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes_of_letters()


def _refuse(message: str):
    from jinja2 import TemplateError

    raise TemplateError(message)


def _unpaired(weight, shape: Shape):
    """GGUF keeps the rows of Q and K so that the two numbers that turn together are neighbours; we keep them half a
    head apart, as Hugging Face does."""
    half = shape.head_dim // 2
    return weight.view(-1, half, 2, shape.hidden).transpose(1, 2).reshape(weight.shape)
