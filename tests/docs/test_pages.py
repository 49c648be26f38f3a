"""The documentation agrees with itself, between languages, and with the code."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from fixtures.pages import ROOT, Page, children, every_page, translated

from msmon.bus.words import Outcome, ProcessState, TraceState, Vocabulary
from msmon.commands.daemon.command import daemon as daemon_command
from msmon.commands.main import cli
from msmon.daemon.access.shares import LIMITS
from msmon.sessions import DropStage
from msmon.sinks.catalog import sink_paths

PAIRS = [pytest.param(*pair, id=pair[0].name) for pair in translated()]
PAGES = [pytest.param(page, id=page.name) for page in every_page()]

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+(?!\w)")
VARIABLE = re.compile(r"\b(?:MSMON|MSMONITOR|KINETO)_[A-Z0-9_]+\b")
PATH = re.compile(r"(?:msmon|tests|scripts|benchmarks|deploy)/[\w./-]*")
CHINESE = re.compile(r"[\u4e00-\u9fff]")

FOREIGN_OPTIONS = {
    *("--certs-dir", "--full", "--help", "--logdir", "--now", "--pids"),
    *("--nproc_per_node", "--print", "--restart", "--user"),
}
"""Options in the pages that are not those of msmon's commands."""

NOT_FOR_USERS = {
    *("MSMON_REQUEST_ID", "MSMON_LAUNCH", "MSMON_RANKS"),
    *("MSMON_WATCH", "MSMON_WATCH_PARENT"),
}
"""Keys in the configuration text of a framework's trace, which look like variables; a prefix; and
what a process tells its child."""


def options_of(command: click.Command) -> set[str]:
    found = {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
        if name.startswith("--")
    }
    for child in children(command).values():
        found |= options_of(child)
    return found - {"--help", "--version"}


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_structure(english: Page, chinese: Page) -> None:
    assert [level for level, _ in chinese.headings] == [level for level, _ in english.headings]
    assert chinese.table_shapes == english.table_shapes
    assert len(re.findall("^- ", chinese.prose, re.MULTILINE)) == len(
        re.findall("^- ", english.prose, re.MULTILINE)
    )


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_code(english: Page, chinese: Page) -> None:
    def without_comments(page: Page) -> list[tuple[str, str]]:
        return [(lang, re.sub(r"\s*#.*", "", code)) for lang, code in page.code_blocks]

    assert without_comments(chinese) == without_comments(english)


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_name_the_same_options_variables_and_paths(
    english: Page, chinese: Page
) -> None:
    for pattern in (OPTION, VARIABLE, PATH):
        assert set(pattern.findall(chinese.prose)) == set(pattern.findall(english.prose))


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_each_page_is_in_its_language_and_links_to_the_other(english: Page, chinese: Page) -> None:
    assert f"[中文]({Path(chinese.name).name})" in english.text
    assert f"[English]({Path(english.name).name})" in chinese.text
    assert CHINESE.findall(english.text) == ["中", "文"]
    plain = [text for _, text in chinese.headings if not CHINESE.search(text)]
    assert len(plain) < len(chinese.headings) / 2


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: Page) -> None:
    for link in page.links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page.name).parent / name if name else ROOT / page.name
        assert target.exists(), link
        if anchor:
            assert anchor in Page(str(target.resolve().relative_to(ROOT))).anchors, link


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page: Page) -> None:
    named = {span for span in page.spans if PATH.fullmatch(span) and "NAME" not in span}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_fit_an_editor(page: Page) -> None:
    long = [line for line in page.prose.splitlines() if len(line) > 130 and line[0] not in "|[!"]
    assert long == []


def test_the_reference_names_every_option_and_no_other() -> None:
    documented = set()
    for name in ("docs/commands.md", "docs/security.md", "docs/outputs.md", "docs/deployment.md"):
        documented |= set(OPTION.findall(Page(name).text))
    real = options_of(cli) | options_of(daemon_command)
    assert real - documented == set()
    for page in every_page():
        assert set(OPTION.findall(page.text)) - real - FOREIGN_OPTIONS == set(), page.name


def test_every_command_is_in_a_table() -> None:
    for name, command in children(cli).items():
        page = Page("docs/security.md" if name == "keys" else "docs/commands.md")
        for part in children(command) or {"": command}:
            assert f"| `msmon {name} {part}".rstrip() in page.text


def test_every_variable_that_the_code_reads_is_documented() -> None:
    read = set()
    for path in (ROOT / "msmon").rglob("*.py"):
        if "sqlite" in path.parts or "conversion" in path.parts:  # tables are called so as well
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                read |= {node.value} & set(VARIABLE.findall(node.value))
    documented = set(VARIABLE.findall(Page("docs/commands.md").text))
    assert read - documented - NOT_FOR_USERS == set()
    assert documented - read - {"MSMON_DAEMON_", "MSMON_WATCH_"} == set()


def test_every_drop_stage_is_documented_and_no_other() -> None:
    text = Page("docs/outputs.md").text
    table = text[text.index("## Drops and gaps") : text.index("## convert")]
    stages = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert stages == [stage.value for stage in DropStage]


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ("| state of a process", "Processes that are gone", ProcessState),
        ("| state of a trace", "STEP is", TraceState),
        ("| outcome", "```", Outcome),
    ],
)
def test_every_state_and_outcome_is_documented(
    begin: str, end: str, words: type[Vocabulary]
) -> None:
    text = Page("docs/commands.md").text
    start = text.index(begin)
    table = text[start : text.index(end, start)]
    first_cells = " ".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))
    documented = set(re.findall(r"`([\w-]+)`", first_cells))
    computed_by_status = {"stuck"}
    assert documented - computed_by_status == {word.value for word in words}


def test_every_share_is_documented_with_its_size() -> None:
    text = Page("docs/security.md").text
    table = text[text.index("## Shares") : text.index("## Audit")]
    rows = dict(re.findall(r"^\| ([a-z' ]+) \| (.+) \|$", table, re.MULTILINE))
    del rows["what"]
    assert list(rows) == [limit.what for limit in LIMITS.values()]
    for limit in LIMITS.values():
        rate = limit.refill_per_s
        number, _, unit = rows[limit.what].partition(" ")
        said = {
            "": limit.amount,
            "MiB": (rate or limit.amount) / 2**20,
            "per minute": rate * 60,
            "of its time": {0.5: "half"}.get(rate, rate),
        }
        assert number == str(said[unit]).partition(".")[0], limit.what


def test_every_sink_is_documented() -> None:
    text = Page("docs/outputs.md").text
    for name in set(sink_paths()) - {"jsonl", "sqlite"}:
        assert f"| `{name}` |" in text


def test_the_rooms_are_those_of_the_import_test() -> None:
    text = Page("docs/architecture.md").prose
    rows = re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", text, re.MULTILINE)
    (sentence,) = re.findall(r"\*The domain\* is ([^.]+)\.", text)
    domain = set(re.findall(r"`(\w+)`", sentence))
    documented = {
        room: set(re.findall(r"`(\w+)`", imports)) | (domain if "the domain" in imports else set())
        for room, imports in rows
    }
    test = import_test()
    assert domain == test.DOMAIN
    assert documented == {
        room: set(imports) for room, imports in test.ALLOWED_ROOMS.items() if room != "msmon"
    }


def import_test() -> Any:
    """Return the module tests/test_imports.py."""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "tests" / "test_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rooms"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module
