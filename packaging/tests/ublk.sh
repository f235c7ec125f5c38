#!/bin/bash
# Drives block devices by ublk in a Linux guest, whose kernel has the driver:
#
#   packaging/tests/ublk.sh BINARY SCRATCH
#
# BINARY is built with the feature `ublk`. The guest runs its daemon, programs that use the device
# and the kills. Says what held as lines `ok: …`, and ends with code 1 and the cause at the first
# thing that did not, with code 2 if it cannot prepare. What it makes lies in SCRATCH, 2 GB, which
# the caller removes.
#
# Needs the packages
#   qemu-system-x86 busybox-static cpio e2fsprogs fio util-linux udev binutils xz-utils
# and a kernel with the module ublk_drv below TENUTO_KERNELS, which is / where it is not set: Debian's
# cloud flavour has it from 6.12 on. Nothing is downloaded. KVM is used where it works, and not
# needed.
set -u -o pipefail
[ $# = 2 ] || { echo "usage: packaging/tests/ublk.sh BINARY SCRATCH" >&2; exit 2; }
here=$(realpath "$(dirname "$0")")
# shellcheck source=packaging/tests/guest.sh
. "$here/guest.sh"
take_places "$1" "$2"
kernels=${TENUTO_KERNELS:-}
PATH=$PATH:/usr/sbin:/sbin
programs="fio mkfs.ext4 e2fsck blkdiscard udevadm"
# shellcheck disable=SC2086 # a list of words
need ldd xz $programs
qemu=
trap '[ -z "$qemu" ] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null' EXIT
trap 'exit 2' INT TERM HUP

# --- the guest -------------------------------------------------------------------------------

hardware="-m 768 -smp 2"
words="console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests nosoftlockup
    sysctl.kernel.hung_task_timeout_secs=480"
words=$(echo $words)
find_kernel() {
    local kernel from
    for kernel in "$kernels"/boot/vmlinuz-*; do
        from=$kernels/lib/modules/${kernel#"$kernels"/boot/vmlinuz-}/kernel
        [ ! -r "$kernel" ] || ! ls "$from"/drivers/block/ublk_drv.ko* >/dev/null 2>&1 ||
            { must ln -sf "$kernel" "$scratch/kernel"; place=$from; }
    done
    [ -e "$scratch/kernel" ] ||
        must false "# no kernel with the module ublk_drv in $kernels/boot"
}
# A module, unpacked; a part of the kernel has no file.
module() {
    local to=$scratch/initramfs/${1##*/}.ko
    if [ -e "$place/$1.ko" ]; then
        must cp "$place/$1.ko" "$to"
    elif [ -e "$place/$1.ko.xz" ]; then
        must xz -dc "$place/$1.ko.xz" >"$to"
    else
        return 1
    fi
}
make_initramfs() {
    local name names=
    find_kernel
    for name in $disk_modules; do
        ! module "$name" || names="$names ${name##*/}"
    done
    module drivers/block/ublk_drv || must false "# the module ublk_drv"
    make_init "$names" "/bin/busybox cp /ublk_drv.ko /root/" "/bin/sh /guest.sh"
}
copy_program() {
    local from=$1 to=$2 library
    must install -D -m 755 "$from" "$to"
    for library in $(ldd "$from" | grep -o '/[^ ]*'); do
        [ -e "$scratch/root$library" ] || must install -D -m 755 "$library" "$scratch/root$library"
    done
}
make_root() {
    local root=$scratch/root program
    must mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,t,mnt,usr}
    must cp "$(command -v busybox)" "$root/bin/busybox"
    must ln -s busybox "$root/bin/sh"
    for program in $programs; do
        copy_program "$(command -v "$program")" "$root/own/$program"
    done
    copy_program "$binary" "$root/own/tenuto"
    must strip "$root/own/tenuto"
    must cp "$here/ublk-guest.sh" "$root/guest.sh"
    # The same program under another name.
    must ln -s udevadm "$root/own/systemd-udevd"
    must install -D -m 644 "$here/../tenuto.rules" "$root/lib/udev/rules.d/60-tenuto.rules"
    must truncate -s 1G "$scratch/disk"
    must mkfs.ext4 -q -F -b 4096 -d "$root" "$scratch/disk"
}

make_initramfs
try_kvm
make_root
echo "ok: a guest with $(readlink "$scratch/kernel") is made, by ${acceleration%,*} ($SECONDS s)"
(machine tenuto.step=run -accel "$acceleration" -serial stdio \
    -drive "if=none,id=disk,format=raw,cache=unsafe,file=$scratch/disk" \
    -device virtio-blk-pci,drive=disk </dev/null 2>"$scratch/qemu.log") >"$scratch/console" &
qemu=$!
# Patience for an emulated guest on a machine with other work.
left=5400
while kill -0 $qemu 2>/dev/null && [ $left -gt 0 ]; do
    sleep 1
    left=$((left - 1))
done
[ $left -gt 0 ] || echo "FAILED: the guest does not come to its end"
tr -d '\r' <"$scratch/console" | grep -E '^(ok|FAILED): ' || true
if tr -d '\r' <"$scratch/console" | grep -q '^ok: all'; then
    echo "ok: the guest has ended ($SECONDS s)"
    exit 0
fi
echo "FAILED: the guest did not come to its end; its console:"
tail -n 60 "$scratch/console" "$scratch/qemu.log"
exit 1
