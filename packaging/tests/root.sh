#!/bin/bash
# Makes a root file system in DIRECTORY from packages that are installed on this machine, with all
# they depend on and their part of dpkg's data base, so that a guest can boot from it, install and
# remove packages. Nothing is downloaded.
#
#   packaging/tests/root.sh DIRECTORY PACKAGE…
set -euo pipefail
root=$1
shift
# All that these packages need, of alternatives the one that is here.
packages=$(dpkg-query -W -f '${binary:Package}\t${Provides}\t${Pre-Depends},${Depends}\n' |
    awk -F '\t' -v wanted="$*" '
    function bare(name) { sub(/[ (:].*/, "", name); return name }
    {
        name = bare($1)
        real[name] = $1
        needs[name] = $3
        count = split($2, provided, /, */)
        for (i = 1; i <= count; i++) {
            virtual = bare(provided[i])
            if (virtual != "" && !(virtual in by)) by[virtual] = name
        }
    }
    END {
        last = split(wanted, queue, " ")
        for (at = 1; at <= last; at++) {
            name = queue[at]
            if (!(name in real) && name in by) name = by[name]
            if (!(name in real) || name in done) continue
            done[name] = 1
            print real[name]
            count = split(needs[name], groups, /, */)
            for (i = 1; i <= count; i++) {
                choices = split(groups[i], choice, / *\| */)
                for (j = 1; j <= choices; j++) {
                    other = bare(choice[j])
                    if (other in real || other in by) { queue[++last] = other; break }
                }
            }
        }
    }')
mkdir -p "$root"/{usr/bin,usr/sbin,usr/lib,usr/lib64,proc,sys,dev,run,tmp,root,mnt,home,var/tmp}
for name in bin sbin lib lib64; do
    [ -L "/$name" ] && [ ! -e "$root/$name" ] && ln -s "usr/$name" "$root/$name"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
database=$root/var/lib/dpkg
mkdir -p "$database"/{info,updates,triggers,alternatives}
for package in $packages; do
    name=$package
    [ -e "/var/lib/dpkg/info/$name.list" ] || name=${package%%:*}
    [ -e "/var/lib/dpkg/info/$name.list" ] || name=$name:$(dpkg --print-architecture)
    cp "/var/lib/dpkg/info/$name.list" "$database/info/"
    cat "/var/lib/dpkg/info/$name.list"
    dpkg-query -s "$package" >>"$database/status"
    echo >>"$database/status"
done | grep -vE '^/\.$|^/usr/share/(doc|man|locale|info|zoneinfo|lintian|bash-completion)/' |
    sort -u | while read -r path; do [ -e "$path" ] && echo "${path#/}"; done >"$root.files"
tar -C / --no-recursion -c -T "$root.files" | tar -C "$root" -x --keep-directory-symlink
rm "$root.files"
# Links that packages make when they are installed.
for link in /bin/sh /etc/alternatives/awk /usr/bin/awk /etc/alternatives/which /usr/bin/which; do
    [ -L "$link" ] && mkdir -p "$root$(dirname "$link")" && cp -a "$link" "$root$link"
done
cp /etc/passwd /etc/group "$root/etc/"
touch "$root/etc/shadow" "$root/etc/gshadow" "$root/etc/fstab"
echo guest >"$root/etc/hostname"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
ldconfig -r "$root"
