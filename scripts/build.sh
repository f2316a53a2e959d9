#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-3.0-or-later
#
# build.sh PRESET [CMAKE-OPTION...]: configure and build one CMake preset into build/PRESET.
# One line says what is done; everything else goes to build/logs/build-PRESET.log.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:?usage: build.sh PRESET [CMAKE-OPTION...]}
shift
log=$root/build/logs/build-$preset.log
mkdir -p "${log%/*}"

fail()
{
	{
		printf -- '--- end of %s\n' "${log#"$root"/}"
		# The first errors say more than the last lines of a parallel build.
		grep -nE -m 5 -A 4 '(error|Error|undefined reference)' "$log" || true
		printf '...\n'
		tail -n 15 "$log"
		printf -- '---\nFAILED: %s of preset %s\n' "$1" "$preset"
		printf 'To do:  see %s; "rm -rf build/%s" makes a fresh start\n' "${log#"$root"/}" "$preset"
	} >&2
	exit 1
}

printf '==> Building %s\n' "$preset"
cd "$root"
cmake --preset "$preset" "$@" >"$log" 2>&1 || fail "configuring"
cmake --build "build/$preset" -j "$(nproc)" >>"$log" 2>&1 || fail "building"
