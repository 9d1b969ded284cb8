"""From logits to tokens, in the three ways that vLLM went through in 2023: one distribution, three costs.

A sampler draws a token a row and reads it, with its log-probability, back to the host. Both can be done sequence by
sequence or for the whole batch at once:

    loop      draw one by one, read one by one    a dozen small kernels and several waits a sequence
    batched   draw together, read one by one      one draw, but still two waits a sequence
    packed    draw together, read together        one draw, one copy, one wait

SAMPLERS also has the fourth corner, "loop, packed", so that each change can be judged with and without the other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sampler:
    """logits [n, vocab] and a temperature a row -> n tokens and their log-probabilities. Temperature 0 is greedy."""

    draw: Callable
    read: Callable

    def __call__(self, logits, temperatures: Sequence[float], generator=None) -> tuple[list[int], list[float]]:
        import torch

        if len(temperatures) != len(logits):
            raise ValueError(f"temperatures: got {len(temperatures)}, allowed is one for each of {len(logits)} rows")
        if not all(0 <= t < float("inf") for t in temperatures):
            raise ValueError(f"temperatures: got {min(temperatures)} to {max(temperatures)}, allowed are numbers >= 0")
        greedy = [t == 0 for t in temperatures]
        logits = logits.float()
        if any(t != 1 for t in temperatures):
            scale = torch.tensor([t or 1.0 for t in temperatures]).to(logits.device, non_blocking=True)
            logits = logits / scale[:, None]
        probabilities = torch.softmax(logits, -1)
        return self.read(self.draw(probabilities, greedy, generator), torch.log(probabilities))


def draw_one_by_one(probabilities, greedy: Sequence[bool], generator) -> Iterator:
    """A generator: each token is read before the next one is drawn."""
    import torch

    for row, is_greedy in zip(probabilities, greedy, strict=True):
        yield row.argmax() if is_greedy else torch.multinomial(row, 1, replacement=True, generator=generator)[0]


def draw_together(probabilities, greedy: Sequence[bool], generator):
    import torch

    if all(greedy):
        return probabilities.argmax(-1)
    drawn = torch.multinomial(probabilities, 1, replacement=True, generator=generator)[:, 0]
    if any(greedy):
        mask = torch.tensor(greedy).to(drawn.device, non_blocking=True)
        drawn = torch.where(mask, probabilities.argmax(-1), drawn)
    return drawn


def read_one_by_one(tokens: Iterable, log_probabilities) -> tuple[list[int], list[float]]:
    """Every .item() waits until the GPU has done all that it was given, then copies a few bytes."""
    pairs = []
    for i, drawn in enumerate(tokens):
        token = drawn.item()
        pairs.append((token, log_probabilities[i, token].item()))
    return [token for token, _ in pairs], [value for _, value in pairs]


def read_together(tokens: Iterable, log_probabilities) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities in one array of 32-bit words: one copy, one wait."""
    import torch

    tokens = tokens if isinstance(tokens, torch.Tensor) else torch.stack(list(tokens))
    chosen = log_probabilities.gather(1, tokens[:, None])[:, 0]
    words = torch.stack([tokens.int(), chosen.view(torch.int32)]).cpu()
    return words[0].tolist(), words[1].view(torch.float32).tolist()


SAMPLERS = {
    "loop": Sampler(draw_one_by_one, read_one_by_one),
    "batched": Sampler(draw_together, read_one_by_one),
    "packed": Sampler(draw_together, read_together),
    "loop, packed": Sampler(draw_one_by_one, read_together),
}


# ---------------------------------------------------------------- the server's: every request as it asked


@dataclass(frozen=True)
class Sampling:
    """How a request wants its tokens drawn. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0  # draw among the likeliest tokens that together are so probable
    seed: int = 0


def draw_each(logits, samplings: Sequence[Sampling], places: Sequence[int]):
    """A token for every row [n, vocab] -> [n]. The number that decides about a token depends on the seed and on its
    place in the answer alone: neither company nor preemption changes a draw. The host waits for nothing."""
    import torch

    tokens = logits.argmax(-1)
    rows = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
    if rows:
        asked, device = [samplings[i] for i in rows], logits.device
        column = lambda values: _sent(values, torch.float64, device)[:, None]  # noqa: E731
        mine = _sent(rows, torch.int64, device)
        scores = logits[mine].double()
        scores = (scores - scores.amax(-1, keepdim=True)) / column([s.temperature for s in asked])
        likely = _likeliest(torch.softmax(scores, -1), [s.top_p for s in asked])
        sums = likely.cumsum(-1)
        numbers = column([_number(samplings[i].seed, places[i]) for i in rows])
        tokens[mine] = torch.searchsorted(sums, numbers * sums[:, -1:], right=True)[:, 0]
    return tokens


def _sent(values: Sequence, dtype, device):
    """On its way to the device."""
    import torch

    here = torch.tensor(values, dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def _likeliest(probabilities, top_p: Sequence[float]):
    """All but the likeliest tokens that together have `top_p` are 0."""
    import torch

    some = [i for i, p in enumerate(top_p) if p < 1]  # to sort is dear
    if not some:
        return probabilities
    rows = _sent(some, torch.int64, probabilities.device)
    limit = _sent([top_p[i] for i in some], torch.float64, probabilities.device)[:, None]
    ordered, order = probabilities[rows].sort(dim=-1, descending=True, stable=True)
    beyond = ordered.cumsum(-1) - ordered >= limit
    kept = torch.zeros_like(ordered).scatter(-1, order, ordered.masked_fill(beyond, 0))
    return probabilities.index_copy(0, rows, kept)


def _number(seed: int, place: int) -> float:
    """From 0 to below 1, in steps wide enough that a product with it stays below the other factor."""
    from numpy.random import Philox

    return (Philox(key=seed % 2**64, counter=place).random_raw() >> 32) / 2**32
