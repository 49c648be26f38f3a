"""``msmon doctor``: check everything that monitoring needs, with the remedy for each problem."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import click

from msmon.bus.messages import StatusRequest
from msmon.commands.asking.answers import sentence
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.diagnosis.checks import examine
from msmon.diagnosis.finding import Finding, Level
from msmon.diagnosis.surroundings import Surroundings

LONGEST_WAIT_S = 2.0
"""For the daemon: one that is stopped or overloaded must not hold the doctor up."""

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@click.option("--fix", is_flag=True, help="Remove shared memory of jobs that are gone.")
@daemon_options
def doctor(connection: Connection, fix: bool) -> int:
    """Check everything that monitoring needs; works without a daemon, and without CANN.

    Exit code 0 when nothing failed (warnings are shown), 1 when a check failed.

    \b
    Why are there no data?
      msmon doctor
    Remove what jobs that are gone have left in shared memory:
      msmon doctor --fix
    """
    quick = dataclasses.replace(connection, timeout_s=min(connection.timeout_s, LONGEST_WAIT_S))
    surroundings = Surroundings(
        os.environ,
        lambda: quick.request(StatusRequest()),
        remote=not connection.same_machine,
        fix=fix,
    )
    findings = []
    for finding in examine(surroundings):
        findings.append(finding)
        if not connection.json:
            _show(finding)
    failed = [finding for finding in findings if finding.level is Level.FAIL]
    if connection.json:
        click.echo(json.dumps({"ok": not failed, "checks": [_plain(each) for each in findings]}))
    return 1 if failed else 0


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level.value:<4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.check}: {sentence(finding.text)}")
    for detail in finding.details:
        click.echo(f"        {sentence(detail)}")
    if finding.remedy:
        click.echo(f"      → {sentence(finding.remedy)}")


def _plain(finding: Finding) -> dict[str, Any]:
    return {**dataclasses.asdict(finding), "level": finding.level.value}
