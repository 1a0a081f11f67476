"""Commands about trust: claims and verdicts, keys and signatures, audits. Each imports its room when it runs."""

import sys

import click

from marin._cli.common import JSON, PREFIX, echo_json
from marin._cli.problems import reported


@click.command()
@PREFIX
@JSON
@click.argument("experiment", required=False)
def hypotheses(prefix: str | None, as_json: bool, experiment: str | None) -> None:
    """List what experiments claimed before they ran, and what became of it; refuted claims stay.

    A claim is open, confirmed, refuted, inconclusive or crashed; a verdict whose evidence is older than the claim is
    marked as post hoc.

    \b
    Examples:
      marin hypotheses
      marin hypotheses wider-is-better --json
    """
    from marin._cli.tables import claim_rows, table
    from marin.errors import UsageError
    from marin.ledger.hypotheses import claims
    from marin.ledger.ledger import Ledger

    with reported():
        known = claims(Ledger(prefix))
        found = [claim for claim in known if experiment in (None, claim.experiment)]
        if experiment is not None and not found:
            names = ", ".join(claim.experiment for claim in known) or "none"
            raise UsageError(f"no hypothesis of {experiment!r}; there are: {names}.", hint="Check the name.")
        if as_json:
            echo_json([claim.to_json() for claim in found])
        elif not found:
            click.echo("no hypotheses on record")
        else:
            header = ["experiment", "state", "claimed", "found", "declared", "evidence", "claim"]
            click.echo(table(header, claim_rows(found)))


@click.command()
@JSON
@click.argument("file", required=False)
def policy(as_json: bool, file: str | None) -> None:
    """Check a policy FILE, or show the policy in force: ./policy.toml, else the shipped one.

    \b
    Examples:
      marin policy
      marin policy policy.toml --json
    """
    import datetime as dt

    from marin._cli.tables import policy_lines
    from marin.policy.policy_file import load_policy

    with reported():
        found = load_policy(file)
        today = dt.datetime.now(dt.UTC).date()
        if as_json:
            echo_json(found.to_json(today))
        else:
            click.echo("\n".join(policy_lines(found.to_json(today))))


@click.command()
@JSON
@click.argument("path")
def keygen(as_json: bool, path: str) -> None:
    """Make an Ed25519 key pair: PATH, which only you may read, and PATH.pub to pass around (needs the extra `sign`).

    \b
    Examples:
      marin keygen ~/.config/marin/release
    """
    from marin.ledger._adapters.ed25519 import generate_pair

    with reported():
        keyid = generate_pair(path)
        if as_json:
            echo_json({"private": path, "public": f"{path}.pub", "keyid": keyid})
        else:
            click.echo(f"{path} (keep it secret), {path}.pub, key {keyid[:16]}")


@click.command()
@PREFIX
@JSON
@click.option("--key", required=True, metavar="KEY", help="Private key: a file of mode 0600, env:NAME or file:/PATH.")
@click.option("--lineage", is_flag=True, help="Also sign everything that it was made from.")
@click.argument("step")
def sign(prefix: str | None, as_json: bool, key: str, lineage: bool, step: str) -> None:
    """Sign NAME@VERSION after hashing it again (needs the extra `sign`). An output that fails the check is not signed.

    \b
    Examples:
      marin sign model@2026.12.01 --key ~/.config/marin/release
      marin sign model@auto --key env:MARIN_SIGNING_KEY --lineage --json
    """
    from marin._cli.tables import verification_lines
    from marin.ledger._adapters.ed25519 import load_signer
    from marin.ledger.ledger import Ledger, split_reference
    from marin.ledger.signing import sign_step

    with reported():
        result, signed = sign_step(Ledger(prefix), *split_reference(step), signer=load_signer(key), lineage=lineage)
        if as_json:
            echo_json({"ok": result.ok, "signed": signed, "verification": result.to_json()})
        elif result.ok:
            click.echo("\n".join(f"signed {label}" for label in signed))
        else:
            click.echo("\n".join([*verification_lines(result), "nothing was signed"]))
    sys.exit(0 if result.ok else 1)


@click.command()
@PREFIX
@JSON
@click.option("-o", "--output", metavar="FILE", help="Write the page there: one HTML file (needs the extra `report`).")
@click.option("--shallow", is_flag=True, help="Compare names and sizes instead of hashing every file again.")
@click.option("--policy", metavar="FILE", help="Rules about sources [./policy.toml, else the shipped].")
@click.option("--keys", "keys_file", metavar="FILE", help="Keys whose signatures count: a .pub file or a .toml list.")
@click.option("--require-signature", is_flag=True, help="Count an output without a valid signature as unverified.")
@click.option(
    "--watts-per-core",
    default=12.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="For the estimate of energy.",
)
@click.argument("step")
def audit(
    prefix: str | None,
    as_json: bool,
    output: str | None,
    shallow: bool,
    policy: str | None,
    keys_file: str | None,
    require_signature: bool,
    watts_per_core: float,
    step: str,
) -> None:
    """Audit NAME@VERSION: lineage, sources and licences, decontamination, losses, code, cost, attempts, verification.

    Exits with 1 when something is unverified.

    \b
    Examples:
      marin audit model@2026.12.01 -o report.html
      marin audit model@auto --json
      marin audit model@auto -o report.html --keys release.pub --require-signature
    """
    from marin._cli.tables import audit_lines
    from marin.ledger.ledger import Ledger, split_reference
    from marin.ledger.trusted_keys import load_trusted_keys
    from marin.policy.policy_file import load_policy
    from marin.reports.audit import AuditOptions, audit_view

    with reported():
        options = AuditOptions(
            deep=not shallow,
            policy=load_policy(policy),
            keys=load_trusted_keys(keys_file) if keys_file else None,
            require_signature=require_signature,
            watts_per_core=watts_per_core,
        )
        view = audit_view(Ledger(prefix), *split_reference(step), options=options)
        if output:
            from marin.reports.audit_page import write_audit_page

            write_audit_page(view, output)
        if as_json:
            echo_json(view.to_json())
        else:
            click.echo("\n".join(audit_lines(view, output)))
    sys.exit(0 if view.ok else 1)


@click.command()
@PREFIX
@JSON
@click.option("--deep", is_flag=True, help="Hash every file again.")
@click.option("--keys", "keys_file", metavar="FILE", help="Keys whose signatures count: a .pub file or a .toml list.")
@click.option("--require-signature", is_flag=True, help="Fail when an output of the lineage has no valid signature.")
@click.argument("step")
def verify(
    prefix: str | None, as_json: bool, deep: bool, keys_file: str | None, require_signature: bool, step: str
) -> None:
    """Check that NAME@VERSION, and everything it was made from, is what was recorded. Exits with 1 when it is not.

    \b
    Examples:
      marin verify model@2026.12.01
      marin verify model@auto --deep --json
      marin verify model@auto --keys release.pub --require-signature
    """
    from marin._cli.tables import verification_lines
    from marin.ledger.ledger import Ledger, split_reference
    from marin.ledger.trusted_keys import load_trusted_keys
    from marin.ledger.verification import verify as check

    with reported():
        keys = load_trusted_keys(keys_file) if keys_file else None
        result = check(
            Ledger(prefix), *split_reference(step), deep=deep, keys=keys, require_signature=require_signature
        )
        if as_json:
            echo_json(result.to_json())
        else:
            click.echo("\n".join(verification_lines(result)))
    sys.exit(0 if result.ok else 1)
