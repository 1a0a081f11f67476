"""Tables and pages of text for the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from marin.ledger.failure_groups import FailureGroup
from marin.ledger.hypotheses import Claim, Verdict
from marin.ledger.ledger import StepEntry
from marin.ledger.verification import Verification

if TYPE_CHECKING:
    from marin.reports.audit_view import AuditView


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, left-aligned, two blanks apart.

    Example:
        >>> print(table(["a", "b"], [["1", "2"]]))
        a  b
        1  2
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def step_rows(entries: Iterable[StepEntry]) -> list[list[str]]:
    """Rows of ``marin ls``."""
    rows = []
    for entry in entries:
        status = entry.status
        state = entry.state + (f" ({status.category})" if status is not None and status.category else "")
        at = status.at[:19] + "Z" if status is not None and status.at else "-"
        digest = (status.content_digest or "-")[:16] if status is not None else "-"
        rows.append([entry.label, state, at, digest])
    return rows


def show_lines(details: dict[str, Any]) -> list[str]:
    """The page of ``marin show``."""
    lines = [f"{details['step']}  {details['status']}", f"  path      {details['path']}"]
    record = details["record"]
    if record is not None:
        used = (record["resources"] or {}).get("used", {})
        lines += [
            f"  made      {record['created_at']} in {record['seconds']:.2f} s by attempt {record['attempt'] or '-'}",
            f"  content   {record['content_digest'] or '-'} ({record['files']} files, {record['bytes']} bytes)",
            f"  recipe    {record['fingerprint'] or '-'}",
            f"  code      {record['provenance'].get('base_commit') or '-'}, file {(record['code_digest'] or '-')[:16]}",
            f"  used      {used.get('cpu_s', '-')} CPU s, {(used.get('ram_peak') or 0) / 2**20:.0f} MiB peak",
            f"  result    {record['result']}",
        ]
        for dep, digest in zip(record["deps"], record["dep_digests"], strict=False):
            lines.append(f"  reads     {dep}  {(digest or 'no digest')[:16]}")
    lines.append(f"  attempts  {len(details['attempts'])}")
    for attempt in details["attempts"]:
        seconds = f"{attempt['seconds']:.2f} s" if attempt["seconds"] is not None else "-"
        text = f"    {attempt['attempt']}  epoch {attempt['epoch']}  {attempt['status']}  {seconds}"
        if attempt["error"]:
            message = str(attempt["error"].get("message", "")).split("\n", 1)[0]
            text += f"  {attempt['category']}: {attempt['error'].get('type', '')}: {message}"
        lines.append(text)
    return lines


def failure_lines(groups: Sequence[FailureGroup], *, traceback: bool) -> list[str]:
    """The page of ``marin failures``."""
    if not groups:
        return ["no failures on record"]
    lines = []
    for group in groups:
        lines.append(f"{len(group.attempts)} x {group.category}  {group.error_type}  [{group.signature}]")
        first_line = group.message.split("\n", 1)[0]
        if first_line:
            lines.append(f"    {first_line}")
        for attempt in group.attempts[-5:]:
            lines.append(f"    {attempt.started_at[:19]}Z  {attempt.step}  attempt {attempt.attempt}")
        if traceback:
            text = (group.attempts[-1].error or {}).get("traceback", "")
            lines += [f"    | {line}" for line in text.splitlines()]
    return lines


def verification_lines(result: Verification) -> list[str]:
    """The page of ``marin verify``."""
    lines = []
    for finding in result.findings:
        signed = f"signed by {finding.signed_by}" if finding.signed_by else f"signature {finding.signature.value}"
        lines.append(f"{'ok     ' if not finding.problems else 'FAILED '} {finding.step}  ({signed})")
        lines += [f"        {problem}" for problem in finding.problems]
    how = "every byte was hashed again" if result.deep else "names, sizes and digests on record; --deep hashes again"
    lines.append(f"{len(result.findings)} steps checked ({how})")
    return lines


def verdict_lines(verdicts: Iterable[Verdict]) -> list[str]:
    """What became of the hypotheses of a run."""
    lines = []
    for verdict in verdicts:
        value = f"{verdict.value:g}" if verdict.value is not None else "no value"
        hoc = ", post hoc: its evidence is older than the claim" if verdict.post_hoc else ""
        lines.append(f"hypothesis {verdict.experiment}: {verdict.outcome.value} ({value}{hoc})")
    return lines


def claim_rows(claims: Iterable[Claim]) -> list[list[str]]:
    """Rows of ``marin hypotheses``."""
    rows = []
    for claim in claims:
        last = claim.verdicts[-1] if claim.verdicts else None
        state = claim.state.replace("_", " ") + (" (post hoc)" if last is not None and last.post_hoc else "")
        said = claim.hypothesis
        wanted = f"{said.metric} {said.direction.value} {said.threshold:g}" if said is not None else "-"
        value = f"{last.value:g}" if last is not None and last.value is not None else "-"
        declared = claim.declared_at[:19] + "Z" if claim.declared_at else "never"
        evidence = ", ".join(last.evidence) if last is not None else "-"
        text = said.claim if said is not None else "-"
        rows.append([claim.experiment, state, wanted, value, declared, evidence or "-", text])
    return rows


def policy_lines(policy: dict[str, Any]) -> list[str]:
    """The page of ``marin policy``."""
    lines = [policy["policy"]]
    for name, rules in policy["kinds"].items():
        asks = [f"decontaminated against {', '.join(rules['decon'])}"] if rules["decon"] else []
        asks += ["reviewed for personal data"] if rules["pii"] else []
        asks += ["no evaluation sets"] if rules["protect_eval"] else []
        lines.append(f"  {name:<13} from {', '.join(rules['allow'])}" + (f"; {'; '.join(asks)}" if asks else ""))
        lines += [f"                never {', '.join(rules['deny'])}"] if rules["deny"] else []
    lines.append(f"  protected     {', '.join(policy['eval_sets']) or 'no evaluation sets'}")
    lines += [f"  source        {item['label']}  {item['licence']}" for item in policy["sources"]]
    for waiver in policy["waivers"]:
        state = "until" if waiver["holds"] else "OVER since"
        lines.append(
            f"  waived        {waiver['rule']} of {waiver['ref']} by {waiver['by']} {state} {waiver['expires']}"
        )
    return lines


def audit_lines(view: "AuditView", output: str | None) -> list[str]:
    """The page of ``marin audit`` on a terminal."""
    lines = [f"{'verified  ' if view.ok else 'UNVERIFIED'}  {view.step}  {len(view.lineage)} steps"]
    lines += [f"  problem   {problem}" for problem in view.problems]
    lines += [f"  note      {note}" for note in view.notes]
    lines.append(f"  made of   {', '.join(view.licences) or 'no declared source'}")
    lines += [f"  source    {item.source}  {item.licence}  read by {item.read_by}" for item in view.materials]
    lines += [f"  claim     {item.experiment}: {item.outcome}" for item in view.claims]
    cost = view.cost
    lines.append(f"  took      {cost.attempts} attempts, {cost.wall_s:.1f} s wall, {cost.cpu_s:.1f} s CPU")
    lines += [f"  page      {output}"] if output else []
    return lines


def diff_lines(difference: dict[str, Any]) -> list[str]:
    """The page of ``marin diff``."""
    lines = [f"{difference['left']} -> {difference['right']}"]
    lines += [f"  recipe    {change}" for change in difference["recipe"]] or ["  recipe    the same"]
    for ref, (before, after) in difference["inputs"].items():
        lines.append(f"  input     {ref}: {(before or 'absent')[:16]} -> {(after or 'absent')[:16]}")
    for name, (before, after) in difference["changed"].items():
        lines.append(f"  {name:<8}  {before} -> {after}")
    lines.append("  bytes     the same" if difference["same_content"] else "  bytes     different")
    return lines
