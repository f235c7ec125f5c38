#!/bin/bash
# Makes the image of a guest: build.sh IMAGE KIND TABLE, in a mount name space of its own.
# KIND is ext4 or xfs, TABLE is gpt, dos or none.
set -eu
image=$1 kind=$2 table=$3
export PATH=$PATH:/usr/sbin:/sbin
mnt=$image.mnt
mkdir -p "$mnt"
# The least that xfs takes, and some for ext4, which has to be read again and again.
case $kind in xfs) mib=310 ;; *) mib=48 ;; esac
truncate -s $((mib + 12))M "$image"
at=0 limit=$(((mib + 12) << 20))
case $table in
gpt | dos)
    printf 'label: %s\nstart=2048, size=%s, type=L\nstart=%s, size=16384, type=S\n' \
        "$table" $((mib * 2048)) $((mib * 2048 + 2048)) | sfdisk -q "$image"
    at=$((2048 * 512)) limit=$((mib << 20))
    swap=$(losetup -f --show -o $(((mib + 1) << 20)) --sizelimit $((8 << 20)) "$image")
    mkswap -q -U 11111111-2222-3333-4444-555555555555 "$swap" 2>/dev/null
    losetup -d "$swap"
    ;;
esac
loop=$(losetup -f --show -o "$at" --sizelimit "$limit" "$image")
trap 'umount "$mnt" 2>/dev/null || true; losetup -d "$loop" 2>/dev/null || true; rmdir "$mnt"' EXIT
case $kind in
ext4) mke2fs -q -F -t ext4 -L root "$loop" ;;
xfs) mkfs.xfs -q -f -L root "$loop" ;;
esac
mount -t "$kind" "$loop" "$mnt"
cd "$mnt"
mkdir -p etc usr/bin bin var/cache/debconf var/cache/apt/archives var/log/journal var/tmp tmp root \
    opt/app 'home/anna b/.cache/thumbs' 'home/anna b/.config/mail' 'home/anna b/.local/share/keyrings' \
    home/bob/.cache home/bob/docs
chmod 1777 tmp var/tmp
chmod 700 root 'home/anna b'
chown -R 1000:1000 'home/anna b'
printf '# the table of the guest\nLABEL=root / %s defaults 0 1\n' "$kind" >etc/fstab
[ "$table" = none ] || echo 'UUID=11111111-2222-3333-4444-555555555555 none swap sw 0 0' >>etc/fstab
[ "$table" != none ] || {
    truncate -s 4M swapfile
    chmod 600 swapfile
    mkswap -q swapfile 2>/dev/null
    echo '/swapfile none swap sw 0 0' >>etc/fstab
}
echo guest >etc/hostname
echo program >usr/bin/program
echo answers >var/cache/debconf/config.dat
# Holes, many names, attributes, rights, times.
truncate -s 30M var/log/sparse
printf 'middle' | dd of=var/log/sparse bs=1M seek=15 conv=notrunc status=none
head -c 3000000 /dev/urandom >opt/app/data
ln opt/app/data opt/app/second
ln opt/app/data var/log/third
echo log >var/log/journal/system
setfattr -n user.note -v kept opt/app/data
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 opt/app/data
# u::rw, user 1000 rw, g::r, mask rw, o::r
setfattr -n system.posix_acl_access -v \
    0x0200000001000600ffffffff02000600e803000004000400ffffffff10000600ffffffff20000400ffffffff \
    var/log/journal/system
setfattr -n system.posix_acl_default -v \
    0x0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff20000500ffffffff \
    var/log/journal
touch 'var/cache/with space' $'var/cache/new\nline' $'var/cache/bad\xff\xfename' 'var/cache/a[b]*c?d\e'
echo deep >$'var/cache/apt/archives/\xc3\xa4'
ln -s ../../etc/hostname var/cache/link
ln -s /etc/passwd tmp/absolute
echo thumb >'home/anna b/.cache/thumbs/1'
echo secret >'home/anna b/.local/share/keyrings/login'
echo mail >'home/anna b/.config/mail/rc'
echo doc >home/bob/docs/doc
mkfifo tmp/fifo
chown -h 12:34 var/cache/link
touch -d '2001-02-03 04:05:06.123456789' opt/app/data var/log/sparse var/cache/apt var/cache
touch -h -d '1999-01-01 00:00:00.5' var/cache/link
touch -d '2010-10-10' . etc home/bob
eval "${MORE:-}"
cd /
umount "$mnt"
