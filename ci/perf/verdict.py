"""What paired times say: an effect with its interval, a rank test, one verdict for each configuration.

A pair is one call of base and one of head, next to each other in random order; of its times only d = ln(head / base) is
used. Under the hypothesis of no difference d is as often above zero as below, at any distance: Wilcoxon's signed ranks
test that, and the effect is the Hodges-Lehmann median of (d_i + d_j) / 2, with the interval that inverts the test.

    SLOWER, FASTER   the test rejects, Holm's correction over all configurations included, and the effect is at least
                     LEAST_EFFECT: less than that is not worth anybody's time, whatever its significance
    SAME             the whole interval lies within SAME_WITHIN
    UNSURE           neither; more pairs would tell

Each table's rounds have a verdict of their own, too: that of the geometric mean of its configurations.

Looks at the data spend ALPHA in parts of 1 / n^2, and each doubles the pairs. `decide` is that procedure; times.py
gives it pairs as it takes them, calibrate.py gives it recorded ones."""

import math
from statistics import NormalDist

ALPHA = 0.005         # of a run: one false alarm in 200, over all configurations and looks
# ln(head / base). Of 7,584 times 30 pairs of one bundle beside itself (recorded/) the largest effect was 0.96 %, and no
# 99 % interval reached beyond 1.6 %: what is larger than the first is no accident of memory and code placement, and
# what is the same is found the same at the first look. Of tables' means the largest was 0.13 %.
LEAST_EFFECT = 0.01
LEAST_EFFECT_OF_TABLE = 0.005
SAME_WITHIN = 0.02
CONFIDENCE = 0.99     # of intervals
LEAST_PAIRS = 20      # with fewer a run says nothing
ROUNDS = 30           # pairs of each configuration before the first look; then twice as many each time
MOST_LOOKS = 5


def signed_ranks(differences):
    """z of Wilcoxon's test, ties by mean ranks, zeros left out; positive: above zero."""
    values = sorted((d for d in differences if d != 0), key=abs)
    n, positive, ties, i = len(values), 0.0, 0.0, 0
    if n == 0:
        return 0.0
    while i < n:
        j = i
        while j < n and abs(values[j]) == abs(values[i]):
            j += 1
        rank = (i + 1 + j) / 2
        positive += rank * sum(v > 0 for v in values[i:j])
        ties += (j - i) ** 3 - (j - i)
        i = j
    mean, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24 - ties / 48
    return (positive - mean - math.copysign(0.5, positive - mean) * (positive != mean)) / math.sqrt(variance)


def p_value(z):
    return 2 * NormalDist().cdf(-abs(z))


def effect(differences, confidence=CONFIDENCE):
    """Hodges-Lehmann median, and the interval of the Walsh averages that signed ranks do not reject."""
    n = len(differences)
    if n == 0:
        return 0.0, -math.inf, math.inf
    walsh = sorted((differences[i] + differences[j]) / 2 for i in range(n) for j in range(i, n))
    m = len(walsh)
    middle = (walsh[(m - 1) // 2] + walsh[m // 2]) / 2
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    cut = math.floor(n * (n + 1) / 4 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    cut = max(0, min(cut, (m - 1) // 2))
    return middle, walsh[cut], walsh[m - 1 - cut]


def holm(p_values):
    """Adjusted p values, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def pairs_wanted(differences, low, high):
    """About how many pairs more would decide: an interval shrinks with the square root of their number."""
    if not differences:
        return LEAST_PAIRS
    target = SAME_WITHIN / 2
    return max(1, math.ceil(len(differences) * (((high - low) / 2 / target) ** 2 - 1)))


def part_of_alpha(look):
    return ALPHA * 6 / math.pi**2 / look**2  # these sum to ALPHA


def judge(samples, look=1, tables=()):
    """`samples`: {configuration: [d, ...]}; `tables`: those of its names that are means of tables. Returns
    {configuration: (verdict, effect, low, high, p, more pairs wanted)}."""
    if not all(math.isfinite(d) for values in samples.values() for d in values):
        raise ValueError("a time is no number above zero")
    names = list(samples)
    adjusted = holm([p_value(signed_ranks(samples[name])) for name in names])
    verdicts = {}
    for name, p in zip(names, adjusted):
        middle, low, high = effect(samples[name])
        least, wanted = LEAST_EFFECT_OF_TABLE if name in tables else LEAST_EFFECT, 0
        if p < part_of_alpha(look) and abs(middle) >= least and len(samples[name]) >= LEAST_PAIRS:
            word = "SLOWER" if middle > 0 else "FASTER"
        elif -SAME_WITHIN < low and high < SAME_WITHIN and len(samples[name]) >= LEAST_PAIRS:
            word = "SAME"
        else:
            word, wanted = "UNSURE", pairs_wanted(samples[name], low, high)
        verdicts[name] = (word, middle, low, high, p, wanted)
    return verdicts


def decide(more, is_time_left, tables_of):
    """Verdicts, and how many looks they took. `more(rounds)` takes pairs and returns all so far, as `judge` wants;
    `tables_of` makes of these the means of tables."""
    for look in range(1, MOST_LOOKS + 1):
        samples = more(ROUNDS << max(0, look - 2))
        tables = tables_of(samples)
        verdicts = judge({**samples, **tables}, look, tables)
        if all(v[0] != "UNSURE" for v in verdicts.values()) or not is_time_left():
            break
    return verdicts, look


def mean_of_table(samples):
    """Of each round, the mean over a table's configurations: of ln, so that of times it is the geometric one."""
    rounds = min(len(values) for values in samples.values())
    return [sum(values[i] for values in samples.values()) / len(samples) for i in range(rounds)]
