# shellcheck shell=bash
# Set-up shared by scripts/demo, scripts/test and scripts/lint. Sourced, never run.
#
# Problem: a fresh machine may have no uv, no Rust, no Node, and a default Python that is too old.
# Idea: find an interpreter that is new enough (PATH, then pyenv, else let uv fetch one), find or install uv inside the
# repository, and sync the locked environment. Everything it writes is git-ignored: .venv/ and .tools/.
#
# Reads: MARIN_ACCELERATOR (cpu, gpu or tpu; default cpu), UV_PROJECT_ENVIRONMENT (default .venv), PYENV_ROOT.
# Gives: $ROOT, $UV, $VENV, $PYTHON (the interpreter inside $VENV) and the function `marin_setup run|dev`.

MINIMUM_PYTHON="3.12"
MINIMUM_UV="0.8.0"

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="${UV_PROJECT_ENVIRONMENT:-$ROOT/.venv}"
case "$VENV" in /*) ;; *) VENV="$ROOT/$VENV" ;; esac
PYTHON="$VENV/bin/python"

say() { printf '%s\n' "$*" >&2; }

die() { # die MESSAGE [HINT]
    say "error: $1"
    if [ -n "${2:-}" ]; then printf '\nhint: %s\n' "$2" >&2; fi
    exit 1
}

# True when $1 runs and is a released CPython that is new enough. A pyenv shim of an inactive version exists but fails.
python_is_enough() {
    "$1" -I -c '
import sys
wanted = tuple(int(part) for part in sys.argv[1].split("."))
good = sys.version_info[:2] >= wanted and sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
raise SystemExit(not good)' "$MINIMUM_PYTHON" >/dev/null 2>&1
}

# Prints the first interpreter that is new enough; fails when there is none. Tested versions come first.
find_python() {
    local candidate name versions="${PYENV_ROOT:-$HOME/.pyenv}/versions"
    for name in python3.12 python3.13 python3 python python3.14; do
        candidate="$(command -v "$name" 2>/dev/null)" || continue
        if python_is_enough "$candidate"; then printf '%s\n' "$candidate"; return 0; fi
    done
    for candidate in "$versions"/3.12.*/bin/python3 "$versions"/3.13.*/bin/python3 "$versions"/3.*/bin/python3; do
        if [ -x "$candidate" ] && python_is_enough "$candidate"; then printf '%s\n' "$candidate"; return 0; fi
    done
    return 1
}

# True when version $1 >= version $2 (both dotted numbers).
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

uv_is_enough() {
    local version
    version="$("$1" --version 2>/dev/null | awk '{print $2}')" && [ -n "$version" ] && version_at_least "$version" "$MINIMUM_UV"
}

# Sets $UV: one on PATH, else the repository's own, else installed from PyPI by any Python 3 that can make an environment.
find_or_install_uv() {
    local tools="$ROOT/.tools" python versions="${PYENV_ROOT:-$HOME/.pyenv}/versions" fresh
    UV="$(command -v uv 2>/dev/null || true)"
    if [ -n "$UV" ] && uv_is_enough "$UV"; then return 0; fi
    UV="$tools/uv/bin/uv"
    if [ -x "$UV" ] && uv_is_enough "$UV"; then return 0; fi
    say "set-up: installing uv from PyPI into .tools/uv"
    mkdir -p "$tools"
    for python in python3 python3.12 python3.13 python /usr/bin/python3 "$versions"/3.*/bin/python3; do
        command -v "$python" >/dev/null 2>&1 || continue
        "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 8))' >/dev/null 2>&1 || continue
        fresh="$(mktemp -d "$tools/uv.XXXXXX")"
        if "$python" -m venv "$fresh" >"$tools/uv.log" 2>&1 &&
            "$fresh/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=$MINIMUM_UV" >>"$tools/uv.log" 2>&1; then
            # uv is one static binary: it may move, the environment around it may not be used as one any more.
            rm -rf "$tools/uv" && mv "$fresh" "$tools/uv"
            if uv_is_enough "$UV"; then return 0; fi
        fi
        rm -rf "$fresh"
    done
    if [ -s "$tools/uv.log" ]; then tail -n 5 "$tools/uv.log" >&2; fi
    die "cannot install uv: no Python 3 here could make an environment and install it from PyPI" \
        "Install uv by hand (https://docs.astral.sh/uv), or a Python 3 with its venv module, and run this again."
}

# marin_setup run: what the main job needs. marin_setup dev: also tests, lint and docs tools.
# Syncs are inexact, so that a developer's extra tools (say the group `rust`) survive them.
marin_setup() {
    local found="" synced="" arguments=(sync --frozen --inexact --all-packages --extra "${MARIN_ACCELERATOR:-cpu}")
    case "$1" in
        run) arguments+=(--no-default-groups) ;;
        dev) arguments+=(--group dev --group test --group interop) ;;
        *) die "marin_setup: unknown mode $1; expected run or dev" ;;
    esac
    # Whatever environment the caller's shell has active is not ours.
    unset VIRTUAL_ENV PYTHONPATH PYTHONHOME UV_PYTHON
    cd "$ROOT" || die "cannot enter $ROOT"
    find_or_install_uv
    if ! { [ -x "$PYTHON" ] && python_is_enough "$PYTHON"; }; then
        found="$(find_python || true)"
        if [ -z "$found" ]; then
            say "set-up: no Python >= $MINIMUM_PYTHON on PATH or under pyenv; uv fetches one"
            found="$MINIMUM_PYTHON"
        fi
        arguments+=(--python "$found")
    fi
    if [ ! -x "$PYTHON" ]; then say "set-up: creating $VENV from uv.lock"; fi
    mkdir -p "$ROOT/.tools"
    if ! "$UV" --quiet "${arguments[@]}" 2>"$ROOT/.tools/sync.log"; then
        # Behind a proxy that signs with a certificate of its own, uv's bundled roots fail and the system's work.
        if grep -qi "certificate" "$ROOT/.tools/sync.log" && [ -z "${UV_SYSTEM_CERTS:-}" ]; then
            say "set-up: trying once more, with the system's certificates"
            export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
            "$UV" --quiet "${arguments[@]}" 2>"$ROOT/.tools/sync.log" && synced=yes
        fi
        if [ -z "$synced" ]; then
            cat "$ROOT/.tools/sync.log" >&2
            die "cannot sync the environment from uv.lock" \
                "uv's message is above. The set-up needs the package registry once; after that it works from uv's cache."
        fi
    fi
    export PATH="$VENV/bin:$PATH"
}
