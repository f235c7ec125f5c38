#!/bin/bash
# Runs the tests of the storage plugin for Proxmox VE, with a real daemon and a stub of PVE::Storage:
#
#   TENUTO_BINARY=PATH packaging/tests/proxmox.sh
#
# Ends with a code that is not 0 if one fails, and within a minute, or TENUTO_TEST_SECONDS on a busy
# machine. Needs perl with its core modules.
# The tests keep to directories of their own, which are removed.
set -u -o pipefail
here=$(cd "$(dirname "$0")/../proxmox" && pwd)
: "${TENUTO_BINARY:?names the program to test}"
TENUTO_BINARY=$(realpath "$TENUTO_BINARY") || exit 2
export TENUTO_BINARY
[ -x "$TENUTO_BINARY" ] || { echo "$TENUTO_BINARY cannot be run" >&2; exit 2; }
perl -MTest::More -MTAP::Harness -e 1 || { echo "perl lacks its core modules" >&2; exit 2; }
cd "$here" || exit 2
# Tests wait more than they work. -T: the daemons of Proxmox VE run with taint checks.
exec timeout "${TENUTO_TEST_SECONDS:-60}" prove -j 5 -T -w -I t/lib "$@" t
