# What packaging/tests/ublk.sh does in its guest, as the first process there. A line `ok: …` for each
# thing that held; at the first that did not, `FAILED: …` and the end of the guest.
export PATH=/bin:/own:/sbin TENUTO_CONFIG=/tenuto.toml NO_COLOR=1
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs run /run
mkdir -p /dev/shm /t/run /t/state
mount -t tmpfs stage /dev/shm
dmesg -n 1
ip link set lo up

say() { echo "ok: $* ($(cut -d. -f1 /proc/uptime) s)"; }
fail() {
    echo "FAILED: $*"
    tail -n 20 /said /log /load /ended 2>/dev/null
    dmesg | tail -n 20
    poweroff -f
    sleep 60
}
# Waits for a state, with a patience of minutes.
until_true() {
    left=6000
    until eval "$1"; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "this does not come: $1"
        usleep 50000
    done
}
# Code, words that have to be said, and a command.
ends_with() {
    wanted=$1 words=$2
    shift 2
    "$@" >/said 2>&1
    code=$?
    [ $code = "$wanted" ] || fail "$* ended with code $code, not $wanted"
    grep -qF -- "$words" /said || fail "$* does not say: $words"
}
is() { [ "$1" = "$2" ] || fail "$3: $1, not $2"; }
serve() {
    tenuto serve >/log 2>&1 </dev/null &
    daemon=$!
    until_true 'grep -q ^ready /log'
}
device() { tenuto volume device "$@"; }
# The processes that serve the device of the disk.
server() {
    for process in /proc/[0-9]*; do
        tr '\0' ' ' <$process/cmdline 2>/dev/null |
            grep -q 'volume device disk --foreground' && echo ${process#/proc/}
    done
}
# A kill that the next step may build on.
kill_server() {
    victim=$(server)
    kill -9 "$victim"
    until_true "! grep -q 'State:.[^Z]' /proc/$victim/status 2>/dev/null"
}
written() { awk '{ print $5 }' /sys/block/ublkb0/stat; }
# Waits until requests are under way again.
flows() {
    from=$(written)
    until_true '[ $(written) -gt $((from + 100)) ] || [ -e /ended ]'
    [ ! -e /ended ] || fail "the load has ended"
}
# Writes and reads back all of the device, until it is told to stop.
load() {
    while [ ! -e /stop ]; do
        fio --name=load --filename=/dev/tenuto/disk --direct=1 --ioengine=libaio --iodepth=32 \
            --rw=randwrite --bsrange=4k-64k --size=24M --verify=crc32c --do_verify=1 \
            --verify_fatal=1 --fsync=64 --minimal --output=/load.fio >/load 2>&1 </dev/null ||
            { echo "fio: $?" >/ended; cat /load.fio >>/load; return; }
    done
    echo well >/done
}

cat >/tenuto.toml <<'TOML'
[host]
name = "host-a"
group = "0"
run-dir = "/t/run"
state-dir = "/t/state"
stage-dir = "/dev/shm"
[cache]
path = "/t/cache"
size = "256M"
ram = "16M"
stage = "16M"
overlay-ram = "16M"
[[volume]]
name = "disk"
origin = "/t/disk.img"
format = "raw"
policy = "write-back"
export = ["nbd"]
[[volume]]
name = "fixed"
origin = "/t/fixed.img"
format = "raw"
policy = "write-through"
read-only = true
export = ["nbd"]
[[volume]]
name = "large-blocks"
origin = "/t/large.img"
format = "raw"
policy = "write-through"
block-size = "4096"
export = ["nbd"]
TOML
truncate -s 32M /t/disk.img
truncate -s 8M /t/fixed.img
truncate -s 8M /t/large.img
serve

# --- the device ------------------------------------------------------------------------------

ends_with 1 "this kernel has no ublk driver" device disk --by ublk
insmod /ublk_drv.ko || fail "the driver"
until_true 'test -e /dev/ublk-control'
ends_with 0 /dev/tenuto/disk device disk --by ublk
is "$(readlink /dev/tenuto/disk)" /dev/ublkb0 "the link"
ends_with 0 /dev/tenuto/disk device disk
ends_with 0 /dev/tenuto/disk device disk --by ublk
ends_with 0 '"device":"/dev/ublkb0"' sh -c "tenuto volume device disk --json | tr -d ' '"
ends_with 1 "is one by ublk" device disk --by nbd
is "$(server | wc -l)" 1 "processes that serve it"
queue=/sys/block/ublkb0/queue
is "$(cat /sys/block/ublkb0/size)" $((32 * 2048)) "sectors"
is "$(cat $queue/logical_block_size)" 512 "the logical block"
is "$(cat $queue/physical_block_size)" 4096 "the physical block"
is "$(cat $queue/write_cache)" "write back" "the write cache"
is "$(cat $queue/fua)" 1 "durable writes"
is "$(cat $queue/max_hw_sectors_kb)" 256 "the longest request"
[ "$(cat $queue/discard_max_hw_bytes)" -gt 0 ] || fail "no discard"
[ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ] || fail "no zeroes"
say "a volume is a block device with the limits of the volume"

ends_with 0 /dev/tenuto/fixed device fixed --by ublk
is "$(cat /sys/block/ublkb1/ro)" 1 "a read-only volume"
ends_with 1 "" sh -c 'dd if=/dev/zero of=/dev/tenuto/fixed bs=4096 count=1'
dd if=/dev/tenuto/fixed of=/dev/null bs=4096 2>/dev/null || fail "it cannot be read"
ends_with 0 "is taken away" device fixed --detach
ends_with 0 /dev/tenuto/large-blocks device large-blocks --by ublk
is "$(cat /sys/block/ublkb1/queue/logical_block_size)" 4096 "a larger block"
ends_with 0 "is taken away" device large-blocks --detach
ends_with 0 "" tenuto volume set large-blocks shared=true
ends_with 2 "is shared" device large-blocks --by ublk
say "read-only volumes, larger blocks and shared volumes are told apart"

fio --name=all --filename=/dev/tenuto/disk --direct=1 --ioengine=libaio --iodepth=32 \
    --rw=randwrite --bsrange=512-128k --size=32M --verify=crc32c --verify_fatal=1 --fsync=32 \
    >/said 2>&1 </dev/null || fail "fio finds other data"
say "what fio has written it reads again"

dd if=/dev/urandom of=/dev/tenuto/disk bs=1M count=8 conv=fsync 2>/dev/null
/own/blkdiscard -o 1048576 -l 1048576 /dev/tenuto/disk || fail "discard"
/own/blkdiscard -z -o 3145728 -l 1048576 /dev/tenuto/disk || fail "zeroes"
echo 3 >/proc/sys/vm/drop_caches
dd if=/dev/tenuto/disk bs=1M skip=3 count=1 2>/dev/null | tr -d '\0' | wc -c >/said
is "$(cat /said)" 0 "bytes that are no zeroes after zeroing"
say "discards and zeroes are carried out"

# --- kills -----------------------------------------------------------------------------------

load &
flows
for round in 1 2 3; do
    kill -9 $daemon
    wait $daemon 2>/dev/null
    usleep 1500000
    [ ! -e /ended ] || fail "requests failed while the daemon was away"
    serve
    flows
done
say "requests wait for a daemon that was killed three times under load"
for round in 1 2 3 4; do
    kill_server
    usleep 300000
    [ ! -e /ended ] || fail "requests failed while no process served the device"
    ends_with 0 /dev/tenuto/disk device disk
    flows
done
say "requests wait for a process that was killed four times under load"
for round in 1 2; do
    kill -9 $daemon
    kill_server
    wait $daemon 2>/dev/null
    serve
    ends_with 0 /dev/tenuto/disk device disk
    flows
done
# A stop in order cuts connections, and a start brings the rest.
kill $daemon
wait $daemon 2>/dev/null
serve
flows
say "both are killed at once, and the daemon ends in order, under load"
touch /stop
until_true 'test -e /done || test -e /ended'
[ -e /done ] || fail "the load finds other data than it wrote"
say "the load found each byte as it wrote it"

# --- a file system and the end ---------------------------------------------------------------

mkfs.ext4 -q -b 4096 /dev/tenuto/disk && mount -t ext4 /dev/tenuto/disk /mnt || fail "no mount"
(dd if=/dev/urandom of=/mnt/file bs=64k count=192 conv=fsync 2>/dev/null; echo $? >/did) &
until_true 'test -s /mnt/file'
kill_server
ends_with 4 "waits for a process" device disk --detach
ends_with 0 /dev/tenuto/disk device disk
until_true 'test -e /did'
is "$(cat /did)" 0 "a write over a kill"
ends_with 4 "is mounted" device disk --detach
sum=$(sha256sum </mnt/file)
umount /mnt || fail "no unmount"
echo 3 >/proc/sys/vm/drop_caches
ends_with 0 "" e2fsck -f -n /dev/tenuto/disk
mount -t ext4 -o ro /dev/tenuto/disk /mnt || fail "no mount"
is "$(sha256sum </mnt/file)" "$sum" "the file"
umount /mnt
say "a file system is whole after a kill"

sleep 1000 </dev/tenuto/disk &
holder=$!
ends_with 4 "in use by process $holder" device disk --detach
kill $holder
wait $holder 2>/dev/null
tenuto volume resize disk +4MiB >/said 2>&1 || fail "no resize"
if grep -q "keeps its size" /said; then
    grep -q "detach it and attach it again" /said || fail "it does not say how"
    is "$(cat /sys/block/ublkb0/size)" $((32 * 2048)) "sectors"
    say "a kernel that resizes no device is told of"
else
    is "$(cat /sys/block/ublkb0/size)" $((36 * 2048)) "sectors"
    say "the device grows with its volume"
fi
sum=$(head -c $((32 << 20)) </dev/tenuto/disk | sha256sum)
ends_with 0 "/dev/ublkb0 is taken away" device disk --detach
[ ! -e /dev/tenuto/disk ] && [ ! -e /dev/ublkb0 ] || fail "something of it is left"
until_true '[ -z "$(ls -A /sys/class/ublk-char)$(ls -A /run/tenuto-devices)" ]'
until_true '[ -z "$(server)" ]'
ends_with 1 "has no block device" device disk --detach
tenuto volume destage disk --wait -q || fail "no destage"
is "$(head -c $((32 << 20)) </t/disk.img | sha256sum)" "$sum" "the image"
ends_with 0 /dev/tenuto/disk device disk --by ublk
is "$(cat /sys/block/ublkb0/size)" $((36 * 2048)) "sectors after another attach"
ends_with 0 "is taken away" device disk --detach
say "detached, nothing is left, and the image has what was written"

mkdir -p /run/udev
systemd-udevd --daemon || fail "no udev"
until_true 'test -e /run/udev/control'
ends_with 0 /dev/tenuto/disk device disk --by ublk
printf 'n\np\n1\n\n\nw\n' | fdisk /dev/tenuto/disk >/dev/null 2>&1
until_true 'test -b /dev/tenuto/disk-part1'
is "$(readlink -f /dev/tenuto/disk-part1)" /dev/ublkb0p1 "the link to a partition"
is "$(udevadm info -q symlink /dev/ublkb0)" tenuto/disk "the link that udev made"
ends_with 0 "is taken away" device disk --detach
until_true 'test ! -e /dev/tenuto/disk'
say "udev names the device and its partitions"
kill $daemon
wait $daemon
say "all"
sync
poweroff -f
