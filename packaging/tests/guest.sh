# What the tests have in common that drive a guest under QEMU. They source it, and set beside:
#   hardware   arguments of QEMU for each guest
#   words      of each kernel
# and put a link to the kernel in SCRATCH, and the modules of `make_init` below SCRATCH/initramfs.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # what is set here is for who sources this, and the reverse
must() {
    "$@" || { echo "cannot prepare: $*" >&2; exit 2; }
}
# Makes `binary` and `scratch` of BINARY and SCRATCH, which must be empty.
take_places() {
    must mkdir -p "$2"
    [ -z "$(ls -A "$2")" ] || { echo "cannot prepare: $2 is not empty" >&2; exit 2; }
    binary=$(must realpath "$1") || exit 2
    scratch=$(must realpath "$2") || exit 2
    must mkdir -p "$scratch/initramfs/bin"
}
need() {
    local program
    for program in setpriv qemu-system-x86_64 busybox cpio mkfs.ext4 strip "$@"; do
        command -v "$program" >/dev/null || { echo "cannot prepare: no $program" >&2; exit 2; }
    done
}
# What a guest needs to reach its disk and is not part of every kernel, in the order of need.
disk_modules="drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev
    drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci drivers/block/virtio_blk"
# Packs an initramfs that loads these modules, mounts the disk, runs a line, and goes on with the
# program on the disk.
make_init() {
    local place=$scratch/initramfs modules=$1 line=$2 program=$3
    must cp "$(command -v busybox)" "$place/bin/busybox"
    cat >"$place/init" <<INIT
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
echo "guest: the kernel runs"
if /bin/busybox grep -q tenuto.step=try /proc/cmdline; then /bin/busybox poweroff -f; fi
for name in$modules; do /bin/busybox insmod /\$name.ko; done
/bin/busybox mount -t ext4 /dev/vda /root || /bin/busybox poweroff -f
$line
/bin/busybox umount /proc
exec /bin/busybox switch_root /root $program
INIT
    chmod 755 "$place/init"
    (cd "$place" && find . | cpio -o -H newc --quiet >"$scratch/initramfs.cpio") ||
        must false "# the initramfs"
}
# A guest, which ends with this script, however that ends: words for its kernel, arguments of QEMU.
machine() {
    local more=$1
    shift
    # shellcheck disable=SC2086 # lists of words
    exec setpriv --pdeathsig KILL qemu-system-x86_64 -nodefaults -display none -no-reboot $hardware \
        -kernel "$scratch/kernel" -initrd "$scratch/initramfs.cpio" -append "$words $more" "$@"
}
# A /dev/kvm that opens does not mean that a guest comes to its first step under it.
# Emulation keeps what it has translated, by default up to 1 GiB of it.
acceleration=tcg,tb-size=256
try_kvm() {
    [ -w /dev/kvm ] || return 0
    (machine tenuto.step=try -accel kvm -serial stdio </dev/null) >"$scratch/kvm" 2>&1 &
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
