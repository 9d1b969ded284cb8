"""Three samplers, one distribution."""

import pytest

torch = pytest.importorskip("torch")

from pod.serving.sampler import SAMPLERS, Sampling, draw_each  # noqa: E402

VOCAB, ROWS, ROUNDS = 24, 250, 40


def chi_square_p(counts, expected) -> float:
    """The probability of a deviation at least this large, if the counts are drawn as expected."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2.0), statistic.float() / 2))


@pytest.fixture(scope="module")
def logits():
    return 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))


def counts_of(draw) -> "torch.Tensor":
    random = torch.Generator().manual_seed(7)
    tokens = [token for _ in range(ROUNDS) for token in draw(random)]
    return torch.bincount(torch.tensor(tokens), minlength=VOCAB)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_have_the_distribution_of_the_softmax(name, temperature, logits):
    expected = torch.softmax(logits / temperature, 0) * ROWS * ROUNDS
    rows = logits.expand(ROWS, VOCAB)
    counts = counts_of(lambda random: SAMPLERS[name](rows, [temperature] * ROWS, random)[0])
    assert chi_square_p(counts, expected) > 1e-3
    wrong = torch.softmax(logits / temperature * 0.9, 0) * ROWS * ROUNDS  # a temperature 10 % off is caught
    assert chi_square_p(counts, wrong) < 1e-3


def test_rows_are_drawn_independently(logits):
    rows = logits.expand(ROWS, VOCAB)
    for name, sampler in SAMPLERS.items():
        random = torch.Generator().manual_seed(1)
        pairs = torch.zeros(VOCAB, VOCAB)
        for _ in range(ROUNDS):
            tokens = torch.tensor(sampler(rows, [1.0] * ROWS, random)[0])
            pairs += torch.bincount(tokens[::2] * VOCAB + tokens[1::2], minlength=VOCAB**2).view(VOCAB, VOCAB)
        expected = pairs.sum(1, keepdim=True) * pairs.sum(0, keepdim=True) / pairs.sum()
        often = expected > 5
        statistic = ((pairs - expected) ** 2 / expected)[often].sum()
        p = torch.special.gammaincc(torch.tensor(float(often.sum()) / 2), statistic / 2)
        assert p > 1e-3, name


def test_greedy_tokens_are_the_same_and_likeliest():
    logits = torch.randn(31, 100, generator=torch.Generator().manual_seed(0))
    want = logits.argmax(-1).tolist()
    for sampler in SAMPLERS.values():
        assert sampler(logits, [0] * 31)[0] == want


@pytest.mark.parametrize("name", SAMPLERS)
def test_greedy_and_drawn_rows_may_be_mixed(name):
    logits = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    temperatures = [0.0, 1.0, 0.5] * 20
    tokens, _ = SAMPLERS[name](logits, temperatures, torch.Generator().manual_seed(0))
    likeliest = logits.argmax(-1).tolist()
    assert tokens[::3] == likeliest[::3] and tokens != likeliest


@pytest.mark.parametrize("name", SAMPLERS)
def test_log_probabilities_are_those_of_the_tokens(name):
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(2)).bfloat16()
    temperatures = [0.0, 1.0, 0.25] * 3
    tokens, logs = SAMPLERS[name](logits, temperatures, torch.Generator().manual_seed(0))
    scaled = logits.double() / torch.tensor([t or 1.0 for t in temperatures])[:, None]
    want = torch.log_softmax(scaled, -1)[range(9), tokens]
    torch.testing.assert_close(torch.tensor(logs, dtype=torch.float64), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperatures", [[1.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_wrong_temperatures_are_named(temperatures):
    with pytest.raises(ValueError, match="^temperatures: got"):
        SAMPLERS["packed"](torch.zeros(2, 4), temperatures)


# ---------------------------------------------------------------- the server's sampler


def drawn(logits, sampling, count=10_000):
    """One row drawn at many places of an answer."""
    rows = logits.expand(count, len(logits))
    return torch.bincount(draw_each(rows, [sampling] * count, range(count)), minlength=len(logits))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_by_number_have_the_distribution_of_the_softmax(temperature, logits):
    counts = drawn(logits, Sampling(temperature, seed=5))
    assert chi_square_p(counts, torch.softmax(logits / temperature, 0) * 10_000) > 1e-3
    assert chi_square_p(counts, torch.softmax(logits / temperature * 0.9, 0) * 10_000) < 1e-3


def test_top_p_keeps_the_likeliest_that_together_have_it(logits):
    probabilities, order = torch.softmax(logits, 0).sort(descending=True)
    kept = int((probabilities.cumsum(0) < 0.6).sum()) + 1
    counts = drawn(logits, Sampling(top_p=0.6, seed=5))
    assert set(counts.nonzero()[:, 0].tolist()) == set(order[:kept].tolist())
    expected = probabilities[:kept] / probabilities[:kept].sum() * 10_000
    assert chi_square_p(counts[order[:kept]], expected) > 1e-3


def test_the_smallest_top_p_and_temperature_are_greedy(logits):
    rows = torch.stack([logits, logits.flip(0)])
    for sampling in (Sampling(0.0), Sampling(top_p=5e-324), Sampling(5e-324), Sampling(0.0, top_p=0.5)):
        assert draw_each(rows, [sampling] * 2, [0, 1]).tolist() == rows.argmax(-1).tolist()


def test_a_draw_depends_on_seed_and_place_and_not_on_company(logits):
    ways = [Sampling(t, p, seed) for t in (0.0, 0.8, 1.5) for p in (0.5, 1.0) for seed in (-(2**63), 0, 2**63 - 1)]
    rows = torch.randn(len(ways), VOCAB, generator=torch.Generator().manual_seed(1))
    places = list(range(7, 7 + len(ways)))
    together = draw_each(rows, ways, places).tolist()
    alone = [draw_each(rows[i : i + 1], [ways[i]], [places[i]]).item() for i in range(len(ways))]
    assert together == alone
    drawn = lambda how, i: draw_each(logits[None], [how], [i]).item()  # noqa: E731
    answers = {seed: [drawn(Sampling(1.5, seed=seed), i) for i in range(30)] for seed in (1, 2)}
    assert answers[1] != answers[2] and len(set(answers[1])) > 5
