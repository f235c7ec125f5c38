#!/bin/bash
# Runs every command of the documents as it stands, in a name space of its own where /etc, /var/lib,
# /run, /mnt and /dev/shm are scratch. As root:
#
#   packaging/tests/documented.sh BINARY SCRATCH DOCUMENT…
#
# fences.sh says how they are read. The configuration of the package is there at the start.
set -u -o pipefail
if [ "${TENUTO_DOCUMENTED:-}" != inside ]; then
    TENUTO_DOCUMENTED=inside exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
binary=$1
scratch=$2
shift 2
tree=$(realpath "$(dirname "$0")/../..")
documents=()
for document in "$@"; do
    documents+=("$(realpath "$document")")
done
must() {
    "$@" || { echo "cannot prepare: $*" >&2; exit 2; }
}
must mount --make-rprivate /
must mkdir -p "$scratch"/{bin,mnt,srv,state,etc,etc.work}
must cp "$binary" "$scratch/bin/tenuto"
must mount -t overlay overlay -o "lowerdir=/etc,upperdir=$scratch/etc,workdir=$scratch/etc.work" /etc
must mount --bind "$scratch/mnt" /mnt
must mount --bind "$scratch/srv" /srv
must mount -t tmpfs -o size=2g tmpfs /dev/shm
must mount -t tmpfs tmpfs /run
must mount -t tmpfs tmpfs /var/lib
must mkdir -p /var/lib/tenuto /etc/tenuto /mnt/nfs/vms /mnt/nfs/gold /srv/vms
must cp "$tree/packaging/tenuto.toml" /etc/tenuto/tenuto.toml
must mount --bind "$scratch/state" /var/lib/tenuto
for number in 1 2 3; do
    must truncate -s 64M "/mnt/nfs/vms/desk-00$number.img"
done
for name in db-data db-log web-root web-data keep-01 pool cloud-root cloud-data; do
    must truncate -s 64M "/srv/vms/$name.img"
done
for image in /mnt/nfs/gold/runner.qcow2 /mnt/nfs/vms/desk-003.qcow2 /srv/vms/{desk-001,gold}.qcow2; do
    must qemu-img create -q -f qcow2 "$image" 64M
done
# A guest with data of each class.
must mkdir -p "$scratch"/office/{etc,opt/app,var/cache,var/log,home/anna/.config}
echo 'LABEL=root / ext4 defaults 0 1' >"$scratch/office/etc/fstab"
for place in opt/app var/cache var/log home/anna/.config; do
    must cp "$0" "$scratch/office/$place/file"
done
must truncate -s 64M "$scratch/office.img"
PATH=$PATH:/usr/sbin:/sbin must mke2fs -q -t ext4 -L root -d "$scratch/office" "$scratch/office.img"
must qemu-img convert -O qcow2 "$scratch/office.img" /srv/vms/office.qcow2
export PATH=$scratch/bin:$PATH HOME=$scratch
unset TENUTO_CONFIG TENUTO_SOCKET
cd "$scratch" || exit 2
# A trace, as the documents name it.
printf '1,0,2a,4096,0\n1,1,28,512,8\n' >disk.csv
gzip -k disk.csv

here=namespace
patience=60
# shellcheck source=packaging/tests/fences.sh
. "$tree/packaging/tests/fences.sh"
for document in "${documents[@]}"; do
    read_document "$document"
done
echo "$ran commands, $failed failed"
[ "$failed" = 0 ]
