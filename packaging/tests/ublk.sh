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
must() {
    "$@" || { echo "cannot prepare: $*" >&2; exit 2; }
}
must mkdir -p "$2"
[ -z "$(ls -A "$2")" ] || { echo "cannot prepare: $2 is not empty" >&2; exit 2; }
binary=$(must realpath "$1") || exit 2
scratch=$(must realpath "$2") || exit 2
kernels=${TENUTO_KERNELS:-}
here=$(realpath "$(dirname "$0")")
PATH=$PATH:/usr/sbin:/sbin
programs="fio mkfs.ext4 e2fsck blkdiscard udevadm"
for program in qemu-system-x86_64 busybox cpio strip ldd xz setpriv $programs; do
    command -v "$program" >/dev/null || { echo "cannot prepare: no $program" >&2; exit 2; }
done
qemu=
trap '[ -z "$qemu" ] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null' EXIT
trap 'exit 2' INT TERM HUP

# --- the guest -------------------------------------------------------------------------------

# What is not part of every kernel, in the order of need.
modules="drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev
    drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci drivers/block/virtio_blk"
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
    must mkdir -p "$scratch/initramfs/bin"
    must cp "$(command -v busybox)" "$scratch/initramfs/bin/busybox"
    for name in $modules; do
        ! module "$name" || names="$names ${name##*/}"
    done
    module drivers/block/ublk_drv || must false "# the module ublk_drv"
    cat >"$scratch/initramfs/init" <<INIT
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
echo "guest: the kernel runs"
if /bin/busybox grep -q tenuto.step=try /proc/cmdline; then /bin/busybox poweroff -f; fi
for name in$names; do /bin/busybox insmod /\$name.ko; done
/bin/busybox mount -t ext4 /dev/vda /root || /bin/busybox poweroff -f
/bin/busybox cp /ublk_drv.ko /root/
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /bin/sh /guest.sh
INIT
    chmod 755 "$scratch/initramfs/init"
    (cd "$scratch/initramfs" && find . | cpio -o -H newc --quiet >"$scratch/initramfs.cpio") ||
        must false "# the initramfs"
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

words="console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests nosoftlockup
    sysctl.kernel.hung_task_timeout_secs=480"
# It ends with this script, however that ends.
machine() {
    # shellcheck disable=SC2086 # a list of words
    exec setpriv --pdeathsig KILL qemu-system-x86_64 -nodefaults -display none -m 768 -smp 2 \
        -no-reboot -kernel "$scratch/kernel" -initrd "$scratch/initramfs.cpio" \
        -append "$(echo $words) $step" "$@"
}
# A /dev/kvm that opens does not mean that a guest comes to its first step under it.
# Emulation keeps what it has translated, by default up to 1 GiB of it.
acceleration=tcg,tb-size=256
try_kvm() {
    [ -w /dev/kvm ] || return 0
    (step=tenuto.step=try machine -accel kvm -serial stdio </dev/null) >"$scratch/kvm" 2>&1 &
    qemu=$!
    for _ in $(seq 50); do
        kill -0 $qemu 2>/dev/null || break
        sleep 0.1
    done
    kill -9 $qemu 2>/dev/null
    wait $qemu 2>/dev/null
    qemu=
    ! grep -q "the kernel runs" "$scratch/kvm" || acceleration=kvm
}

make_initramfs
try_kvm
make_root
echo "ok: a guest with $(readlink "$scratch/kernel") is made, by ${acceleration%,*} ($SECONDS s)"
(step="tenuto.step=run" machine -accel "$acceleration" -serial stdio \
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
