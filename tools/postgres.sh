#!/usr/bin/env bash
# Gets PostgreSQL for the tests of events, where that is easy: as root on a Debian that has none. Never fails: without it those
# tests are skipped, and say so. No server is started and none made: the tests run one of their own.
set -uo pipefail

installed() {
    command -v initdb || compgen -G "/usr/lib/postgresql/*/bin/initdb" || test -x "$(pg_config --bindir 2>/dev/null)/initdb"
} >/dev/null 2>&1

get() {
    export DEBIAN_FRONTEND=noninteractive
    local quietly=(timeout 300 apt-get -qq -y -o DPkg::Lock::Timeout=60 -o Acquire::http::Timeout=20 -o Acquire::Retries=1)
    local conf=/etc/postgresql-common/createcluster.conf
    mkdir -p "${conf%/*}"
    test -e "$conf" || echo "create_main_cluster = false" >"$conf" # the package would start a server of its own
    "${quietly[@]}" update && "${quietly[@]}" --no-install-recommends install postgresql
} </dev/null >/dev/null 2>&1

installed && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    get && installed && exit 0
fi
echo "PostgreSQL is not installed and could not be got (apt-get install postgresql): tests that need it are skipped" >&2
exit 0
