"""Metric families of a look, and their text.

Problem: prometheus_client makes an object with a dictionary of labels for every sample, and looks
through each name and label again when it writes it: with a thousand groups, two thirds of all that
a look costs. Choice: a family keeps the values of its labels as tuples, and writes its text at
once. Cost: the format of samples stands here a second time; a test holds it against the library,
byte for byte.

Source: Prometheus, "Exposition formats" (text, version 0.0.4).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.utils import floatToGoString

Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[str, tuple[str, ...], float]
"""One line: what is appended to the family's name, values of the labels, the value."""
_TO_ESCAPE: Final = re.compile(r'[\\\n"]')
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""In a label's value."""


class Family:
    """One family; `labels` are the names that its samples have values for.

    A counter's name is told with `_total`, a histogram's labels are followed by `le`.
    """

    def __init__(self, kind: Kind, name: str, text: str, labels: Sequence[str]) -> None:
        self.kind, self.name, self.help = kind, name, text
        self.labels = tuple(labels)
        self.samples: list[Sample] = []
        self._suffix = "_total" if kind == "counter" else ""

    def add(self, values: tuple[str, ...], value: float | None) -> None:
        """A sample; what is not known (None) is none."""
        if value is not None:
            self.samples.append((self._suffix, values, value))

    def add_buckets(
        self, values: tuple[str, ...], buckets: Iterable[tuple[str, float]], total: float
    ) -> None:
        """Of a histogram: (upper bound, how many up to it) in rising order, the sum of all."""
        count = 0.0
        for bound, count in buckets:
            self.samples.append(("_bucket", (*values, bound), count))
        self.samples.append(("_count", values, count))
        self.samples.append(("_sum", values, total))

    def text(self) -> str:
        """As Prometheus reads it."""
        told = self.name + self._suffix
        return f"# HELP {told} {self.help}\n# TYPE {told} {self.kind}\n" + "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        every = chain.from_iterable(values for _, values, _ in self.samples)
        odd = _TO_ESCAPE.search("".join(every)) is not None
        forms: dict[str, _Form] = {}
        for suffix, values, value in self.samples:
            form = forms.get(suffix)
            if form is None:
                names = (*self.labels, "le") if suffix == "_bucket" else self.labels
                form = forms[suffix] = _form(self.name + suffix, names)
            if odd:
                values = tuple(each.translate(_ESCAPED) for each in values)  # noqa: PLW2901
            yield form.line % (*form.order(values), _number(value))


class _Form(NamedTuple):
    line: str
    order: Callable[[tuple[str, ...]], tuple[str, ...]]


def _form(name: str, labels: Sequence[str]) -> _Form:
    """A line to be filled, and the order in which it wants the labels' values: by name."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    told = ",".join(f'{labels[at]}="%s"' for at in order)
    # One index alone would give the value without a tuple around it.
    pick: Any = itemgetter(*order) if len(order) > 1 else itemgetter(slice(None))
    return _Form(f"{name}{{{told}}} %s\n", pick)


@lru_cache(maxsize=1024)
def _number(value: float) -> str:
    """Most figures are the same few."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
