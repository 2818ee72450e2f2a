"""What can be counted of docs/contributing/style-guide.md, in user pages, help and messages.

Faults: a sentence that nobody reads to its end, an old word for a thing beside its new one, a page
that grows, help that begins in the middle, a number without its unit.
"""

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median

import pytest

from tests.docs import words
from tests.docs.words import (
    helps,
    messages,
    page_sentences,
    sentences,
    size_of,
    user_pages,
    without_blocks,
)
from tests.support.needs import repository

LONGEST = 30
"""Words of a sentence: the guide asks for 25."""
MEDIAN = 16
NEAR = 0.2
"""A page is so near to its target size."""
TARGETS = {
    "start/install.md": 250,
    "start/observe.md": 600,
    "start/first-job.md": 800,
    "start/demo.md": 300,
    "concepts/overview.md": 700,
    "concepts/cost.md": 700,
    "concepts/delivery.md": 700,
    "concepts/reading-modes.md": 400,
    "concepts/causes.md": 700,
    "concepts/storms.md": 400,
    "concepts/comparison.md": 500,
    "how-to/security.md": 900,
    "how-to/deploy.md": 400,
    "how-to/scale.md": 500,
    "how-to/any-consumer.md": 650,
    "how-to/investigate.md": 700,
    "how-to/alerts.md": 600,
    "how-to/history.md": 700,
    "how-to/kubernetes.md": 1200,
    "how-to/adopt.md": 500,
    "how-to/airflow.md": 330,
    "how-to/dagster-project.md": 450,
    "how-to/dagster.md": 900,
    "how-to/sinks.md": 1000,
    "how-to/schema-registry.md": 500,
    "how-to/remote-spark.md": 700,
    "how-to/spark-operator.md": 300,
    "how-to/simulate.md": 600,
    "how-to/drain-time.md": 250,
    "how-to/packed.md": 200,
    "how-to/other-scalers.md": 450,
    "how-to/scaling-limits.md": 400,
    "how-to/structured-streaming.md": 300,
    "how-to/upgrade.md": 400,
    "how-to/uninstall.md": 200,
    "troubleshoot/symptoms.md": 600,
    "troubleshoot/faq.md": 400,
    "reference/metrics.md": 1500,
    "reference/acls.md": 400,
    "reference/history-tables.md": 800,
    "reference/data-source.md": 700,
    "reference/kubernetes-objects.md": 700,
    "reference/probes.md": 500,
    "reference/performance.md": 1000,
    "reference/glossary.md": 400,
}
"""Page → words; each runbook has RUNBOOK, what is generated has none."""
RUNBOOK = 150
GENERATED = {"reference/cli.md", "reference/fleet-yaml.md", "reference/json.md"}

REPLACED = {
    r"takeovers?": "failover, or handover",
    r"gates?": "synchronized join",
    r"(?:holders?|takers?)": "slot owner, new owner",
    r"waves?": "rolling batch",
    r"episodes?": "one rebalance",
    r"pric(?:es?|ed|ing)": "expected cost",
    r"promis(?:es?|ed|ing)": "guarantee, upper bound",
    r"(?:a|an|the|each|every|next|last|one|two|between|first) looks?": "refresh",
    r"worst members?": "top offender",
    r"calm(?:s|ed|ing|er)?": "cooldown",
    r"verdicts?": "lag status; of a receipt: result",
    r"patien(?:ce|t)": "grace period",
    r"held": "owned, pinned, blocked, frozen",
    r"condemned": "poison record",
    r"put aside": "poison record",
    r"ill": "unhealthy",
    r"cut off": "disconnected",
    r"unproven": "on trial",
    r"crews?": "worker reports",
    r"(?:the|a|its|this) home(?:'s)?": "state directory",
    r"(?:foreign|strangers?|not ours|other people(?:'s)?)": "external",
    r"(?:story|stories)": "scenario",
    r"ordinary way": "baseline",
    r"(?:processed|lost or|nothing) twice": "duplicates",
    r"(?:made|created) (?:again|anew)": "recreated",
    r"nudg(?:es?|ed|ing)": "re-subscribe",
    r"departures?": "removal",
    r"reborn": "recreated",
    r"(?:nobody|somebody|whoever)": "the actor's name",
    r"(?:weather|witness(?:es)?|door)": "no metaphor",
    r"mend(?:s|ed|ing)?": "fix",
}
"""A replaced term → what the guide has instead."""
_REPLACED = {re.compile(rf"\b(?:{term})\b"): better for term, better in REPLACED.items()}
_SHOUTED = re.compile(r"\b[A-Z]{2,}\b")
"""`HELD` is a value and no word."""

QUESTIONS = {
    *("how", "what", "whether", "if", "where", "who", "whom", "whose", "when", "why", "which"),
    *("is", "are", "was", "has", "does", "can", "may", "to", "as", "then", "so", "with", "by"),
    *("it", "this", "that", "these", "those", "there", "they", "but", "and", "or", "of", "also"),
}
"""Words with which neither an imperative nor a noun phrase begins."""
SETTING = re.compile(r"\w[.:]\w|[a-z][A-Z]")
"""What Kafka or Kubernetes call a setting is a noun, though it begins in lower case."""
THIRD = re.compile(r"(?:[A-Z][a-z]+[^s]s|Does|Goes|Is|Has) (?:a|an|the|each|every|all|one|what)\b")
"""A command's summary in the third person: `Shows the …`."""
TIMES = re.compile(r"timeout|interval|seconds|every|after|lease|\bage\b|window|retention|duration")
SIZES = re.compile(r"size|bytes|memory|disk")
UNITS = re.compile(
    r"SECONDS|TIME|second|minute|hour|\bday|\bms\b|\bs\b|\d+ ?(?:ms|s|m|h|d)\b|duration"
    r"|bytes|[KMG]i?B\b|records|pixels|lines"
)


DOCS = repository() / "docs"


def test_sentences_of_pages_are_short() -> None:
    """Tables and code left out."""
    assert not [str(each) for each in page_sentences() if each.words > LONGEST]


def test_half_of_the_sentences_are_shorter_still() -> None:
    """Over all user pages."""
    assert median(each.words for each in page_sentences()) <= MEDIAN


@pytest.mark.parametrize("page", user_pages())
def test_a_page_has_its_size(page: str) -> None:
    """Within a fifth: the page with its code is no shorter, without it no longer."""
    if page in GENERATED:
        return
    runbook = page.startswith("troubleshoot/runbooks/")
    target = RUNBOOK if runbook else TARGETS[page]
    whole, told = map(size_of, (user_pages()[page], without_blocks(user_pages()[page])))
    said = f"{page} has {told} words and {whole} with its code, its target is {target}"
    assert told <= (1 + NEAR) * target, said
    assert whole >= (1 - NEAR) * target, said


@pytest.mark.skipif(not (DOCS / "how-to").exists(), reason="its pages are written elsewhere")
def test_pages_are_those_of_the_table() -> None:
    """Each in one folder, with a size of its own."""
    there = {page for page in user_pages() if "/runbooks/" not in page}
    assert there == {*TARGETS, *GENERATED}
    assert sum("/runbooks/" in page for page in user_pages()) == 14


def _written(page: str, text: str) -> str:
    """Without code, and of a generated page without its tables: they are judged as help."""
    lines = text.splitlines(keepends=True)
    kept = (line for line in lines if page not in GENERATED or not line.startswith("|"))
    return words.without_code("".join(kept))


def test_pages_have_no_replaced_terms() -> None:
    """Code left out, tables not."""
    wrong = [
        f"{page}: {found}"
        for page, text in user_pages().items()
        for found in replaced(_written(page, text))
    ]
    assert not wrong, wrong


def test_help_has_no_replaced_terms() -> None:
    """Of commands, options and keys."""
    wrong = [f"{each.place}: {found}" for each in helps() for found in replaced(each.text)]
    assert not wrong, wrong


def test_messages_have_no_replaced_terms() -> None:
    """Those that are raised."""
    wrong = [f"{each.place}: {found}" for each in messages() for found in replaced(each.text)]
    assert not wrong, wrong


def replaced(text: str) -> Iterator[str]:
    """Each replaced term of a text, with what to write."""
    plain = " ".join(_SHOUTED.sub("", words.without_code(text)).split())
    plain = plain[:1].lower() + plain[1:]
    for term, better in _REPLACED.items():
        for found in term.finditer(plain):
            yield f"{found[0]!r}: write {better!r}"


def test_sentences_of_help_are_short() -> None:
    """Of commands, options and keys."""
    wrong = [
        str(sentence)
        for each in helps()
        for paragraph in each.text.split("\n\n")
        for sentence in sentences(each.place, paragraph)
        if sentence.words > LONGEST
    ]
    assert not wrong, wrong


def test_sentences_of_messages_are_short() -> None:
    """Its parts, divided by `; `: what failed, why, what to do."""
    assert not [str(each) for each in messages() if each.words > LONGEST]


def test_help_begins_with_an_imperative_or_a_noun() -> None:
    """No question, no pronoun; a command's summary does not speak in the third person."""
    wrong = [f"{each.place}: {each.text[:60]}" for each in helps() if not _begins_well(each)]
    assert not wrong, wrong


def _begins_well(each: words.Help) -> bool:
    first = each.text.split(maxsplit=1)[0]
    if each.kind == "command" and THIRD.match(each.text):
        return False
    if first[0].islower():
        return bool(SETTING.search(first))
    return first.strip(",.:").lower() not in QUESTIONS


def test_pages_that_are_named_are_there() -> None:
    """`documentation: how-to/alerts` in a string of the code; no text names a file of docs."""
    wrong = [f"{each.place}: {each.text}" for each in helps() if "docs/" in each.text]
    wrong += [str(each) for each in messages() if "docs/" in each.text]
    for path in sorted((repository() / "fleet").rglob("*.py")):
        if "documentation:" not in (text := path.read_text(encoding="utf-8")):
            continue
        whole = _BROKEN.sub("", text)
        for page in _PAGE.findall(whole):
            folder = DOCS / page.split("/")[0]
            if folder.exists() and not (DOCS / f"{page}.md").exists():
                wrong.append(f"{path.name}: {page}")
    assert not wrong, wrong


_BROKEN = re.compile(r'"\s*\n\s*f?"')
"""Where a string goes on in the next line."""
_PAGE = re.compile(r"documentation:\s+([a-z-]+(?:/[a-z-]+)+)")


def test_time_and_size_have_a_unit() -> None:
    """In the help, the metavar or the type."""
    wrong = [
        f"{each.place} {each.metavar}: {each.text}"
        for each in helps()
        if each.kind != "command" and each.metavar and _measures(each)
        if not UNITS.search(f"{each.metavar} {each.text}")
    ]
    assert not wrong, wrong


def _measures(each: words.Help) -> bool:
    name = each.place.rsplit("--")[-1].rsplit(".")[-1]
    number = each.kind == "option" or each.metavar in {"number", "whole number", "duration"}
    return number and bool(TIMES.search(name) or SIZES.search(name))


def test_the_counting_itself() -> None:
    """A sentence ends at its stop, and code is one word."""
    found = list(sentences("x", "It runs `a b c` once. Then [it stops](y.md): 3 times (or 4)."))
    assert [each.words for each in found] == [4, 3, 4]
    assert list(replaced("the gate opens, `gate`, HELD")) == ["'gate': write 'synchronized join'"]
    assert size_of("| a | b c |\n|---|---|\n") == 3
    assert Counter(each.kind for each in helps()).keys() == {"command", "option", "key"}
