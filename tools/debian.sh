#!/usr/bin/env bash
# Gets what tests need of Debian, where that is easy, as root on a Debian that lacks it: PostgreSQL, PgBouncer and MariaDB for those of
# events, with the two drivers of MariaDB that have to be compiled, etcd for those of leases, and Chromium for those of the console.
# Never fails: without them those tests are skipped, and say so. No server is started and none made: the tests run their own.
# Usage: tools/debian.sh [PYTHON of the virtual environment that gets the drivers]
set -uo pipefail
python=${1:-}

postgres() {
    command -v initdb || compgen -G "/usr/lib/postgresql/*/bin/initdb" || test -x "$(pg_config --bindir 2>/dev/null)/initdb"
} >/dev/null 2>&1

mariadb() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd && test -e /usr/share/mysql/mysql_system_tables.sql
} >/dev/null 2>&1

headers() { command -v mariadb_config; } >/dev/null 2>&1

bouncer() { test -x /usr/sbin/pgbouncer; } >/dev/null 2>&1

etcd() { type -P etcd; } >/dev/null 2>&1

browser() { command -v chromium || command -v google-chrome; } >/dev/null 2>&1

apt() { # COMMAND...
    DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -y -o APT::Install-Recommends=false \
        -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=60 -o Acquire::http::Timeout=20 -o Acquire::Retries=1 "$@"
} </dev/null >/dev/null 2>&1

get() { # PACKAGE...
    local conf=/etc/postgresql-common/createcluster.conf one
    echo "getting $* with apt-get" >&2
    mkdir -p "${conf%/*}"
    test -e "$conf" || echo "create_main_cluster = false" >"$conf" # the package would start a server of its own
    test -e /etc/default/pgbouncer || echo "START=0" >/etc/default/pgbouncer # as would this one
    apt update # where it fails, the lists that are there may do
    apt install "$@" || for one in "$@"; do apt install "$one"; done # one that is not there keeps none of the others away
}

get_etcd() { # the program alone: its package would start a server
    local away
    echo "getting etcd with apt-get" >&2
    away=$(mktemp -d) && chmod 755 "$away" || return
    apt update
    (cd "$away" && apt download etcd-server && dpkg-deb -x etcd-server_*.deb . && install usr/bin/etcd /usr/local/bin/etcd)
    rm -rf "$away"
}

missing=()
postgres || missing+=(postgresql)
mariadb || missing+=(mariadb-server-core) # the server alone: nothing that would start one
headers || missing+=(libmariadb-dev)
bouncer || missing+=(pgbouncer)
browser || missing+=(chromium) # it brings a font
if [ "${#missing[@]}" != 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    get "${missing[@]}"
fi
if ! etcd && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    get_etcd
fi
postgres || echo "PostgreSQL is not installed and could not be got (apt-get install postgresql): tests that need it are skipped" >&2
mariadb || echo "MariaDB is not installed and could not be got (apt-get install mariadb-server-core): tests that need it are skipped" >&2
bouncer || echo "PgBouncer is not installed and could not be got (apt-get install pgbouncer): tests that need it are skipped" >&2
etcd || echo "etcd is not installed and could not be got (apt-get install etcd-server): tests that need it are skipped" >&2
browser || echo "Chromium is not installed and could not be got (apt-get install chromium): tests that need it are skipped" >&2

test -n "$python" || exit 0
drivers() { "$python" -c 'import MySQLdb, mariadb'; } >/dev/null 2>&1
compiled() { # away from the environment, which keeps its own packages
    local pins away build
    pins=$(cd "$(dirname "$0")/.." && pwd)/constraints-mariadb.txt away=$(mktemp -d) || return
    local pip=("$away/bin/python" -m pip --disable-pip-version-check --no-input)
    "$python" -m venv "$away" &&
        "${pip[@]}" install --quiet --no-deps --require-hashes -r <(sed '1,/^# to build/d' "$pins") &&
        timeout 300 "${pip[@]}" wheel --quiet --no-deps --no-build-isolation --require-hashes --wheel-dir "$away/wheels" \
            -r <(sed '/^# to build/,$d' "$pins") &&
        "$python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-index "$away"/wheels/*.whl
    build=$?
    rm -rf "$away"
    return $build
} </dev/null >/dev/null 2>&1
drivers || { headers && compiled && drivers; } ||
    echo "mysqlclient and mariadb could not be compiled (libmariadb-dev, a C compiler, Python's headers): their tests are skipped" >&2
exit 0
