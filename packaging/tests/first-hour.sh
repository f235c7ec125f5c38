#!/bin/bash
# The commands of docs/getting-started.md as they stand, in a guest of its own, under systemd. Says
# what became of each as a line `guest: …`.
set -u -o pipefail
here=guest
scratch=/tmp
# An emulated processor on a busy machine.
patience=180
export DEBIAN_FRONTEND=noninteractive
cd /root || exit 2
. /fences.sh
read_document /getting-started.md 2>&1 | sed -u 's/^/guest: /'
journalctl --no-pager -u tenuto | tail -n 40
sync
echo "guest: unmounted"
systemctl poweroff -ff
