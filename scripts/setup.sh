#!/usr/bin/env bash
# SPDX-License-Identifier: LGPL-3.0-or-later
#
# Everything that building and testing needs, on Debian 12:
#   1. packages, by name, through the machine's own apt
#   2. the Ganesha headers (Debian ships none): its source, of the very version that is installed
#   3. fio with its nfs engine (Debian's binary lacks it), from Debian's fio source
#
# A step that is done already is not done again. Root is needed only while a package is missing.
# Details go to build/logs/setup-*.log. Nothing of the machine's apt configuration is changed.
set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
deps=$build/deps
logs=$build/logs
work=                     # scratch folder, removed at the end
policy=                   # a policy-rc.d that we made, removed at the end

packages=(
	# build
	cmake make gcc libc6-dev clang pkg-config dpkg-dev xz-utils
	libntirpc-dev liburcu-dev libkrb5-dev libdbus-1-dev liburing-dev libcmocka-dev
	# the server, and what its clients and its disks need
	nfs-ganesha nfs-ganesha-vfs libnfs-dev libnfs-utils
	xfsprogs e2fsprogs util-linux mount
	# a disk with a log of its writes: qemu-storage-daemon and its FUSE export
	qemu-system-common fuse3
	# tests, checks, plots
	python3 python3-matplotlib strace clang-format clang-tidy libclang-rt-14-dev
)

say() { printf '==> %s\n' "$*"; }

# fail WHAT HINT [LOG]: what failed, what to do, and the end of its log.
fail()
{
	{
		if [ -n "${3:-}" ] && [ -s "$3" ]; then
			printf -- '--- end of %s\n' "${3#"$root"/}"
			tail -n 25 "$3"
			printf -- '---\n'
		fi
		printf 'FAILED: %s\n' "$1"
		printf 'To do:  %s\n' "$2"
	} >&2
	exit 1
}

cleanup()
{
	if [ -n "$policy" ]; then rm -f "$policy"; fi
	if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'fail "line $LINENO of scripts/setup.sh: $BASH_COMMAND" "please report this"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- 1. packages

missing_packages()
{
	local name
	for name in "${packages[@]}"; do
		case $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true) in
		installed) ;;
		*) printf '%s\n' "$name" ;;
		esac
	done
}

install_packages()
{
	local log=$logs/setup-packages.log names
	mapfile -t names < <(missing_packages)
	if [ ${#names[@]} -eq 0 ]; then
		say "Packages: all ${#packages[@]} are installed"
		return
	fi
	if [ "$(id -u)" != 0 ]; then
		fail "these packages are missing: ${names[*]}" \
			"run this once as root, or: apt-get install --no-install-recommends ${names[*]}"
	fi
	say "Packages: installing ${#names[@]} (${names[*]})"
	# The server's package would start it as a service; ours are started by hand.
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive
	: >"$log"
	# Stale or absent package lists are the usual reason of a failure, so they are renewed first.
	apt-get update >>"$log" 2>&1 || say "Packages: apt-get update had errors, trying all the same"
	apt-get install -y --no-install-recommends "${names[@]}" >>"$log" 2>&1 </dev/null ||
		fail "apt-get install ${names[*]}" \
			"see the log above; is this Debian 12, is the network up, are the apt sources right?" \
			"$log"
	if [ -n "$policy" ]; then
		rm -f "$policy"
		policy=
	fi
	mapfile -t names < <(missing_packages)
	[ ${#names[@]} -eq 0 ] ||
		fail "still not installed: ${names[*]}" "see the log above" "$log"
	if [ -d /run/systemd/system ] && grep -q 'Setting up nfs-ganesha ' "$log"; then
		say "Note: the nfs-ganesha service was not started, but starts at the next boot;" \
			"'systemctl disable nfs-ganesha' keeps it off"
	fi
}

# Ganesha learns from this file which file systems there are, and without it refuses each export.
# Debian's installer and most containers have it; a bare debootstrap has not.
need_mtab()
{
	[ ! -e /etc/mtab ] || return 0
	[ "$(id -u)" = 0 ] ||
		fail "/etc/mtab is missing" "run this once as root, or: ln -s ../proc/self/mounts /etc/mtab"
	say "/etc/mtab is missing: making it the usual link to ../proc/self/mounts"
	ln -sf ../proc/self/mounts /etc/mtab
}

# --- sources, with an apt configuration of our own

# apt_private COMMAND...: apt-get with deb-src copies of the machine's sources and its own lists.
apt_private()
{
	apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/parts" \
		-o Dir::State::lists="$work/apt/lists" -o Dir::Cache::srcpkgcache= \
		-o Dir::Cache::pkgcache= -o APT::Sandbox::User="$(id -un)" "$@"
}

# Once per run, and only when a source is really needed.
prepare_apt()
{
	local log=$1 file copied=0
	[ ! -d "$work/apt" ] || return 0
	mkdir -p "$work/apt/parts" "$work/apt/lists/partial"
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -r "$file" ] || continue
		sed 's/^[Tt]ypes:.*/Types: deb-src/' "$file" >"$work/apt/parts/${file##*/}"
		copied=1
	done
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -r "$file" ] || continue
		sed -n 's/^[[:space:]]*deb\([[:space:]]\)/deb-src\1/p' "$file" \
			>"$work/apt/parts/$(basename "$file" .list).list"
		copied=1
	done
	[ $copied = 1 ] || fail "no apt sources found below /etc/apt" "set up apt's sources"
	# A third party's archive without sources is an error here and no matter: the fetch decides.
	apt_private update >>"$log" 2>&1 || true
}

# fetch_source PACKAGE[=VERSION] FOLDER LOG: unpack its upstream tarball into FOLDER.
fetch_source()
{
	local package=$1 folder=$2 log=$3 name=${1%%=*} tarball
	prepare_apt "$log"
	mkdir -p "$work/$name/tree"
	(cd "$work/$name" && apt_private source --tar-only "$package") >>"$log" 2>&1 ||
		fail "apt-get source --tar-only $package" \
			"is the network up? Does 'apt-get update && apt-get upgrade $name' offer another version?" \
			"$log"
	tarball=$(find "$work/$name" -maxdepth 1 -name '*.orig.tar.*' ! -name '*.asc' | head -n 1)
	[ -n "$tarball" ] || fail "no upstream tarball of $package came" "see the log" "$log"
	tar -xf "$tarball" -C "$work/$name/tree" --strip-components=1 >>"$log" 2>&1 ||
		fail "cannot unpack ${tarball##*/}" "is the disk full?" "$log"
	rm -rf "$folder"
	mv "$work/$name/tree" "$folder"
}

# --- 2. Ganesha's headers

# The version that a source tree says it is: 4.3
source_version()
{
	sed -n -e 's/^set(GANESHA_MAJOR_VERSION \(.*\))/\1/p' -e 's/^set(GANESHA_MINOR_VERSION \(.*\))/\1/p' \
		"$1/src/CMakeLists.txt" 2>/dev/null | tr -d '\n'
}

get_ganesha()
{
	local log=$logs/setup-ganesha.log tree=$deps/ganesha installed version
	# shellcheck disable=SC2016 # dpkg-query's variables, not the shell's
	installed=$(dpkg-query -W -f '${source:Upstream-Version}' nfs-ganesha) ||
		fail "nfs-ganesha is not installed" "run this as root, so that it can be"
	# shellcheck disable=SC2016
	version=$(dpkg-query -W -f '${source:Version}' nfs-ganesha)
	if [ -f "$tree/src/include/fsal.h" ] && [ "$(source_version "$tree")" = "$installed" ]; then
		say "Ganesha headers: version $installed, as the installed server"
		return
	fi
	say "Ganesha headers: fetching the source of nfs-ganesha $version"
	: >"$log"
	fetch_source "nfs-ganesha=$version" "$work/ganesha.new" "$log"
	[ -f "$work/ganesha.new/src/include/fsal.h" ] ||
		fail "the source of nfs-ganesha $version has no src/include/fsal.h" "see the log" "$log"
	[ "$(source_version "$work/ganesha.new")" = "$installed" ] ||
		fail "the source is version '$(source_version "$work/ganesha.new")', the server $installed" \
			"a plugin must match its server: apt-get update, then apt-get install nfs-ganesha" "$log"
	rm -rf "$tree"
	mv "$work/ganesha.new" "$tree"
	say "Ganesha headers: version $installed, verified to be that of the installed server"
}

# --- 3. fio

fio_works() { [ -x "$1" ] && "$1" --enghelp=nfs 2>/dev/null | grep -q nfs_url; }

get_fio()
{
	local log=$logs/setup-fio.log tree=$deps/fio
	if fio_works "$tree/fio"; then
		say "fio: $("$tree/fio" --version) with the nfs engine"
		return
	fi
	say "fio: fetching Debian's source and building it with the nfs engine (a minute or two)"
	: >"$log"
	fetch_source fio "$work/fio.new" "$log"
	(cd "$work/fio.new" && ./configure) >>"$log" 2>&1 ||
		fail "fio's ./configure" "see the log above" "$log"
	grep -Eq '^(libnfs|NFS) engine +yes' "$log" ||
		fail "fio's ./configure did not find libnfs" "apt-get install --reinstall libnfs-dev" "$log"
	make -C "$work/fio.new" -j "$(nproc)" fio >>"$log" 2>&1 ||
		fail "building fio" "see the log above" "$log"
	fio_works "$work/fio.new/fio" ||
		fail "the fio just built does not know its nfs engine (fio --enghelp=nfs)" "see the log" "$log"
	rm -rf "$tree"
	mv "$work/fio.new" "$tree"
	say "fio: $("$tree/fio" --version) with the nfs engine"
}

# --- all of it

{ command -v apt-get && command -v dpkg-query; } >/dev/null ||
	fail "this machine has no apt" "use Debian 12, or a container of it"
# shellcheck source=/dev/null
if ! (. /etc/os-release && [ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ]); then
	say "Note: made for Debian 12; this is another system, so package names or versions may differ"
fi
mkdir -p "$deps" "$logs"
exec 9>"$deps/.lock"
if ! flock -n 9; then
	say "Another set-up is running in this tree, waiting for it"
	flock 9
fi
rm -rf "$deps"/.work.* # of a run that was killed; none is running: the lock is ours
work=$(mktemp -d "$deps/.work.XXXXXX")
install_packages
need_mtab
get_ganesha
get_fio
