#!/bin/bash
# What an administrator would do with the package, in a guest of its own, under systemd. Says each
# thing that held as a line `guest: …`, and stops at the first that did not.
set -u
say() { echo "guest: $*"; }
fail() {
    say "FAILED $*"
    systemctl --no-pager -l status tenuto | head -n 40
    journalctl --no-pager -u tenuto 2>/dev/null | tail -n 40
    systemctl poweroff -ff
    sleep 60
}
property() { systemctl show -p "$1" --value tenuto; }
# Waits for a condition: seconds, then a command.
until_true() {
    local left=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.2
    done
}
socket=/run/tenuto/disk.nbd.sock
image=/mnt/nfs/disk.img
bytes=$((8 << 20))
reads_the_same() {
    nbdcopy "nbd+unix:///?socket=$socket" - 2>/dev/null | head -c $bytes | cmp - /root/pattern
}
restarted() { [ "$(property NRestarts)" -gt "$1" ] && systemctl is-active tenuto; }
dirty() { tenuto volume show disk --json | grep -q '"state": "dirty"'; }

mkdir -p /mnt/nfs /opt
truncate -s 32M $image
head -c $bytes /dev/urandom >/root/pattern

dpkg -i /root/first.deb || fail install
systemctl is-active tenuto >/dev/null && fail "started by its installation"
systemctl is-enabled tenuto >/dev/null && fail "enabled by its installation"
getent group kvm >/dev/null || fail "no group for the sockets"
tenuto config --check || fail "the configuration of the package"
systemctl start tenuto || fail start
say "started as it was installed"
[ "$(stat -c '%a %G' /run/tenuto/nbd.sock)" = "660 kvm" ] || fail "mode of the socket"
tenuto volume add disk origin=$image format=raw policy=write-back destage-after=1h || fail add
truncate -s 1M /opt/out.img
tenuto volume add out origin=/opt/out.img format=raw 2>/root/refused && fail "the sandbox is open"
say "sandbox: $(cat /root/refused)"

nbdcopy --flush /root/pattern "nbd+unix:///?socket=$socket" || fail write
dirty || fail "nothing is dirty"
stage=$(ls -i /dev/shm/tenuto-*)
kill -9 "$(property MainPID)"
until_true 60 restarted 0 || fail "not restarted after a kill"
reads_the_same || fail "other data after a kill"
dirty || fail "not dirty after a kill"
say "killed with dirty data and back"

restarts=$(property NRestarts)
kill -STOP "$(property MainPID)"
until_true 90 restarted "$restarts" || fail "not restarted when frozen"
reads_the_same || fail "other data after it was frozen"
say "frozen and restarted by the watchdog"

systemctl reload tenuto || fail reload
until_true 20 systemctl is-active tenuto || fail "not active after a reload"
say "status $(property StatusText)"

pid=$(property MainPID)
dpkg -i /root/second.deb || fail upgrade
[ "$(property MainPID)" != "$pid" ] || fail "not restarted by the upgrade"
systemctl is-active tenuto >/dev/null || fail "not active after the upgrade"
[ "$(ls -i /dev/shm/tenuto-*)" = "$stage" ] || fail "another stage after the upgrade"
reads_the_same || fail "other data after the upgrade"
dirty || fail "not dirty after the upgrade"
say "upgraded in place with its stage"

dpkg -r tenuto 2>/root/removed || fail remove
systemctl is-active tenuto >/dev/null && fail "active after its removal"
grep -q "volume disk: " /root/removed || fail "the removal does not tell what is dirty"
dpkg -P tenuto 2>/root/purged || fail purge
grep -q "is kept" /root/purged || fail "the purge does not tell that it keeps dirty data"
[ -e /var/lib/tenuto/cache ] || fail "the purge took dirty data"
say "a purge keeps dirty data: $(grep 'volume disk' /root/purged)"

dpkg -i /root/second.deb || fail "install again"
systemctl start tenuto || fail "start again"
reads_the_same || fail "other data after it was installed again"
tenuto volume destage disk --wait || fail destage
tenuto volume rm disk || fail rm
head -c $bytes $image | cmp - /root/pattern || fail "the image is not what was written"
other=/dev/shm/tenuto-00000000-0000-4000-8000-000000000001
touch $other
dpkg -P tenuto || fail "purge when clean"
[ -e $other ] || fail "the purge took the stage of another daemon"
rm $other
[ ! -e /var/lib/tenuto ] && [ ! -e /etc/tenuto ] && [ ! -e /run/tenuto ] || fail "state is left"
ls /dev/shm/tenuto-* 2>/dev/null && fail "a stage is left"
[ "$(ls -A /mnt/nfs)" = disk.img ] || fail "beside the origin is left: $(ls -A /mnt/nfs)"
say "purged, the image is whole and nothing lies beside it"
sync
say unmounted
systemctl poweroff -ff
