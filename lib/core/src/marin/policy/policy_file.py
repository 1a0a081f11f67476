"""Reading ``policy.toml``, strictly: a key that is not known is an error that names the nearest one.

::

    format = 1
    [licences]                       groups, written as "@group" below
    permissive = ["MIT", "Apache-2.0"]
    [kinds.train]                    what steps of this kind may be made from
    allow = ["@permissive", "LicenseRef-acme"]      "*" is every licence
    deny = ["GPL-3.0-only"]
    protect_eval = true
    require = { decon = ["gsm8k"], pii = "reviewed" }
    [eval_sets]                      sources of protected evaluation suites
    gsm8k = ["hf:openai/gsm8k"]
    [[source]]                       terms that somebody looked up, over what recipes say
    ref = "hf:acme/web"
    licence = "CC-BY-4.0"
    allowed_uses = ["train"]
    pii_risk = "reviewed"
    evidence = "https://example.org/terms"
    [[waiver]]
    ref = "hf:acme/web"
    rule = "licence"
    reason = "counsel agreed on 2026-11-02"
    by = "Ada"
    expires = 2027-03-31
"""

import datetime as dt
import difflib
import hashlib
import os
import tomllib
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

from marin.errors import PolicyError
from marin.policy.rules import RULES, KindRules, Policy, Waiver
from marin.policy.spdx import accepts, is_licence_id
from marin.policy.terms import PII_RISKS, USES, SourceTerms

POLICY_FILE = "policy.toml"
FORMAT = 1

_TOP = ("format", "licences", "kinds", "eval_sets", "source", "waiver")
_KIND = ("allow", "deny", "protect_eval", "require")
_REQUIRE = ("decon", "pii")
_SOURCE = ("ref", "licence", "allowed_uses", "eval_suite", "pii_risk", "evidence")
_WAIVER = ("ref", "rule", "reason", "by", "expires", "step")


def load_policy(path: str | None = None, *, default: bool = False) -> Policy:
    """The policy in force.

    Args:
        path: File to read; None takes ``policy.toml`` of the current folder, else the one that ships with the package.
        default: Take the shipped one whatever lies in the current folder.
    Returns:
        The policy.
    Raises:
        PolicyError: The file does not exist or says something that cannot be meant.
    """
    if path is None and not default and os.path.isfile(POLICY_FILE):
        path = POLICY_FILE
    if path is None:
        text = files("marin.policy").joinpath("default_policy.toml").read_text(encoding="utf-8")
        return parse_policy(text, path="default policy")
    try:
        with open(path, encoding="utf-8") as file:
            return parse_policy(file.read(), path=path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PolicyError(path, "", f"it cannot be read ({reason})", hint="Pass the path of a TOML file.") from None


def parse_policy(text: str, *, path: str) -> Policy:
    """Read the text of a policy.

    Args:
        text: TOML.
        path: Where it comes from, for errors and for the label.
    Raises:
        PolicyError: Names the file, the key and what was expected.
    Example:
        >>> parse_policy("format = 1\\n[kinds.train]\\nallow = ['MIT']", path="p").rules_for("train").accepts("MIT")
        True
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(path, "", f"it is not TOML ({error})", hint="Check the line named there.") from None
    return _Reader(path).policy(data, hashlib.sha256(text.encode("utf-8")).hexdigest())


class _Reader:
    """Checks every key and value; ``path`` is the file, for errors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def policy(self, data: Mapping[str, Any], digest: str) -> Policy:
        self._known(data, _TOP, "")
        if data.get("format") != FORMAT:
            raise self._bad(
                "format", f"is {data.get('format')!r}, expected {FORMAT}", f"Begin with 'format = {FORMAT}'."
            )
        groups = {
            name: self._licences(value, f"licences.{name}", {}) for name, value in self._table(data, "licences").items()
        }
        kinds = {name: self._kind(value, name, groups) for name, value in self._table(data, "kinds").items()}
        if not kinds:
            raise self._bad("kinds", "is missing or empty", "Add a table such as [kinds.train].")
        eval_sets = {
            name: tuple(self._texts(value, f"eval_sets.{name}"))
            for name, value in self._table(data, "eval_sets").items()
        }
        sources = [self._source(item, number) for number, item in enumerate(self._tables(data, "source"), 1)]
        return Policy(
            label=f"{os.path.basename(self._path)} ({digest[:12]})",
            kinds=kinds,
            eval_sets=eval_sets,
            sources={terms.label: terms for terms in sources},
            waivers=tuple(self._waiver(item, number) for number, item in enumerate(self._tables(data, "waiver"), 1)),
        )

    def _kind(self, value: Any, name: str, groups: Mapping[str, frozenset[str]]) -> KindRules:
        key = f"kinds.{name}"
        table = self._is(value, dict, key, "a table")
        self._known(table, _KIND, key)
        if "allow" not in table:
            raise self._bad(f"{key}.allow", "is missing", 'List licences or groups; ["*"] accepts every licence.')
        require = self._is(table.get("require", {}), dict, f"{key}.require", "a table")
        self._known(require, _REQUIRE, f"{key}.require")
        pii = require.get("pii", "")
        if pii not in ("", "reviewed"):
            raise self._bad(f"{key}.require.pii", f"is {pii!r}, expected 'reviewed'", 'Write pii = "reviewed".')
        return KindRules(
            allow=self._licences(table["allow"], f"{key}.allow", groups),
            deny=self._licences(table.get("deny", []), f"{key}.deny", groups),
            decon=tuple(self._texts(require.get("decon", []), f"{key}.require.decon")),
            pii=pii,
            protect_eval=self._is(table.get("protect_eval", False), bool, f"{key}.protect_eval", "true or false"),
        )

    def _licences(self, value: Any, key: str, groups: Mapping[str, frozenset[str]]) -> frozenset[str]:
        found: set[str] = set()
        for item in self._texts(value, key):
            if item.startswith("@"):
                if item[1:] not in groups:
                    raise self._bad(key, f"names the group {item!r}{_nearest(item[1:], groups, '@')}", "Define it.")
                found |= groups[item[1:]]
            elif item != "*" and not is_licence_id(item):
                everything = set().union(*groups.values()) if groups else set()
                reason = f"{item!r} is no SPDX identifier{_nearest(item, everything)}"
                raise self._bad(key, reason, "Use an identifier of spdx.org/licenses, or LicenseRef-NAME.")
            else:
                found.add(item)
        return frozenset(found)

    def _source(self, value: Any, number: int) -> SourceTerms:
        key = f"source[{number}]"
        table = self._is(value, dict, key, "a table")
        self._known(table, _SOURCE, key)
        values = {name: self._text(table, name, key) for name in ("ref", "licence")}
        if not accepts(values["licence"], is_licence_id):
            raise self._bad(f"{key}.licence", f"{values['licence']!r} is no SPDX expression", "Check the identifier.")
        uses = self._texts(table["allowed_uses"], f"{key}.allowed_uses") if "allowed_uses" in table else None
        for use in uses or ():
            self._one_of(use, USES, f"{key}.allowed_uses")
        pii = table.get("pii_risk", "unknown")
        self._one_of(pii, PII_RISKS, f"{key}.pii_risk")
        return SourceTerms(
            label=values["ref"],
            licence=values["licence"],
            allowed_uses=None if uses is None else tuple(uses),
            eval_suite=self._text(table, "eval_suite", key, needed=False),
            pii_risk=pii,
            evidence=self._text(table, "evidence", key, needed=False),
        )

    def _waiver(self, value: Any, number: int) -> Waiver:
        key = f"waiver[{number}]"
        table = self._is(value, dict, key, "a table")
        self._known(table, _WAIVER, key)
        texts = {name: self._text(table, name, key) for name in ("ref", "rule", "reason", "by")}
        self._one_of(texts["rule"], RULES, f"{key}.rule")
        expires = table.get("expires")
        if not isinstance(expires, dt.date) or isinstance(expires, dt.datetime):
            shown = "is missing" if expires is None else f"is {expires!r}"
            raise self._bad(
                f"{key}.expires", f"{shown}, expected a date", "Write expires = 2027-03-31, without quotes."
            )
        return Waiver(**texts, expires=expires, step=self._text(table, "step", key, needed=False))

    # ---- values ------------------------------------------------------------------------------------------------------

    def _bad(self, key: str, reason: str, hint: str) -> PolicyError:
        return PolicyError(self._path, key, reason, hint=hint)

    def _known(self, table: Mapping[str, Any], names: Collection[str], key: str) -> None:
        for name in table:
            if name not in names:
                where = f"{key}.{name}" if key else name
                hint = f"Known here: {', '.join(names)}."
                raise self._bad(where, f"this key is not known{_nearest(name, names)}", hint)

    def _one_of(self, value: Any, names: Collection[str], key: str) -> None:
        if value not in names:
            reason = f"is {value!r}{_nearest(str(value), names)}"
            raise self._bad(key, reason, f"Expected one of: {', '.join(names)}.")

    def _is(self, value: Any, kind: type, key: str, expected: str) -> Any:
        if not isinstance(value, kind):
            raise self._bad(key, f"is {value!r}, expected {expected}", "Change its value.")
        return value

    def _table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        return self._is(data.get(key, {}), dict, key, "a table")

    def _tables(self, data: Mapping[str, Any], key: str) -> list[Any]:
        return self._is(data.get(key, []), list, key, f"tables written as [[{key}]]")

    def _texts(self, value: Any, key: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self._bad(key, f"is {value!r}, expected a list of texts", 'Write it as ["..."].')
        return value

    def _text(self, table: Mapping[str, Any], name: str, key: str, *, needed: bool = True) -> str:
        value = table.get(name, "")
        if not isinstance(value, str) or (needed and not value.strip()):
            shown = f"is {value!r}" if value else "is missing or empty"
            raise self._bad(f"{key}.{name}", f"{shown}, expected text", f"Fill in {name}.")
        return value


def _nearest(word: str, names: Collection[str], mark: str = "") -> str:
    close = difflib.get_close_matches(word, list(names), 1)
    return f"; did you mean {mark + close[0]!r}?" if close else ""
