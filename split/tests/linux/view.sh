#!/bin/bash
# Compares what a guest sees of its disks with the image: view.sh IMAGE DIRECTORY KIND AT BYTES, in a
# mount name space of its own. Both as raw files; AT and BYTES are those of the root.
set -eu
image=$1 dir=$2 kind=$3 at=$4 bytes=$5
export PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d)
loops=
trap 'umount -R "$work/guest" "$work/input" 2>/dev/null || true
    for loop in $loops; do losetup -d "$loop" 2>/dev/null || true; done; rm -rf "$work"' EXIT
mkdir "$work/guest" "$work/input"
case $kind in xfs) same=,nouuid,norecovery ;; *) same=,noload ;; esac
attach() { # file at bytes
    loop=$(losetup -r -f --show -o "$2" --sizelimit "$3" "$1")
    loops="$loops $loop"
}
qemu-img convert -O raw "$image" "$work/input.raw"
qemu-img convert -O raw "$dir/system.qcow2" "$work/system.raw"
attach "$work/input.raw" "$at" "$bytes"
mount -t "$kind" -o "ro$same" "$loop" "$work/input"
attach "$work/system.raw" "$at" "$bytes"
mount -t "$kind" -o "ro$same" "$loop" "$work/guest"
sed '1,/tenuto image split/d' "$work/guest/etc/fstab" >"$work/lines"
while read -r what place kind options _; do
    place=$work/guest$(printf '%b' "${place//\\0/\\00}")
    case $what in
    LABEL=tenuto-swap) continue ;;
    LABEL=tenuto-never) disk=$dir/never.raw ;;
    LABEL=tenuto-wb) disk=$dir/write-back.raw ;;
    LABEL=tenuto-keep) disk=$dir/keep.raw ;;
    LABEL=tenuto-wt) disk=$dir/write-through.raw ;;
    /) mount --bind "$work/guest" "$place"; continue ;;
    *)
        [ "$kind" = none ] || { echo "no bind: $what $place $kind"; exit 1; }
        mount --bind "$work/guest$(printf '%b' "${what//\\0/\\00}")" "$place"
        continue
        ;;
    esac
    size=$(sfdisk -J "$disk" | sed -n 's/.*"size": *\([0-9]*\).*/\1/p' | head -n 1)
    attach "$disk" 1048576 $((size * 512))
    [ "$(blkid -p -o value -s LABEL "$loop")" = "${what#LABEL=}" ] || { echo "label of $disk"; exit 1; }
    mount -t "$kind" -o ro "$loop" "$place"
done <"$work/lines"
# A link from the root of the guest is followed in the guest.
rsync -aHAXn --checksum --delete --itemize-changes --exclude=/.tenuto --exclude=/etc/fstab \
    --exclude=/swapfile ${EXCLUDE:-} "$work/input/" "$work/guest/" >"$work/differences"
cat "$work/differences"
diff -r --no-dereference --exclude=fifo --exclude=.tenuto --exclude=fstab --exclude=swapfile \
    ${DIFF_EXCLUDE:-} "$work/input" "$work/guest"
# What moved is no longer on the system disk.
mkdir "$work/bare"
mount --bind "$work/guest" "$work/bare"
(cd "$work/bare" && find tmp var/tmp var/cache var/log opt -mindepth 1 2>/dev/null | sort) || true
umount "$work/bare"
echo "== fstab"
cat "$work/guest/etc/fstab"
echo "== allocated"
echo "sparse $(stat -c %b "$work/guest/var/log/sparse") sectors"
for file in "$dir"/*.raw; do
    echo "$(basename "$file") $(($(stat -c %b "$file") / 2 / 1024)) MiB of $(($(stat -c %s "$file") >> 20))"
done
