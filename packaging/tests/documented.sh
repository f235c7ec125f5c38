#!/bin/bash
# Runs every command of the documents as it stands, in a name space of its own where /etc, /var/lib,
# /run, /mnt and /dev/shm are scratch. As root:
#
#   packaging/tests/documented.sh BINARY SCRATCH DOCUMENT…
#
# A fence ```sh is run line by line, each line must end with code 0, or with N where it ends with
# "# code N". `tenuto serve` goes on in the background once it is ready. A fence after a line
# `<!-- not run: REASON -->` is listed with its reason. The fence ```toml that begins with
# "# /etc/tenuto/tenuto.toml" is written there. The documents are one story, read in order.
set -u -o pipefail
if [ "${TENUTO_DOCUMENTED:-}" != inside ]; then
    TENUTO_DOCUMENTED=inside exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
binary=$1
scratch=$2
shift 2
documents=()
for document in "$@"; do
    documents+=("$(realpath "$document")")
done
must() {
    "$@" || { echo "cannot prepare: $*" >&2; exit 2; }
}
must mount --make-rprivate /
must mkdir -p "$scratch"/{bin,mnt,state,etc,etc.work}
must cp "$binary" "$scratch/bin/tenuto"
must mount -t overlay overlay -o "lowerdir=/etc,upperdir=$scratch/etc,workdir=$scratch/etc.work" /etc
must mount --bind "$scratch/mnt" /mnt
must mount -t tmpfs -o size=2g tmpfs /dev/shm
must mount -t tmpfs tmpfs /run
must mount -t tmpfs tmpfs /var/lib
must mkdir -p /var/lib/tenuto /etc/tenuto /mnt/nfs/vms /mnt/nfs/gold
must mount --bind "$scratch/state" /var/lib/tenuto
for number in 1 2 3; do
    must truncate -s 64M "/mnt/nfs/vms/desk-00$number.img"
done
for image in /mnt/nfs/gold/runner.qcow2 /mnt/nfs/vms/desk-003.qcow2; do
    must qemu-img create -q -f qcow2 "$image" 64M
done
export PATH=$scratch/bin:$PATH HOME=$scratch
unset TENUTO_CONFIG TENUTO_SOCKET
cd "$scratch" || exit 2
# A trace, as the documents name it.
printf '1,0,2a,4096,0\n1,1,28,512,8\n' >disk.csv
gzip -k disk.csv

failed=0
ran=0
# Starts what stays in the foreground, and waits for its word.
serve() {
    : >"$scratch/serve"
    tenuto serve >"$scratch/serve" 2>"$scratch/serve.log" </dev/null &
    local left=600
    until grep -q '^ready' "$scratch/serve"; do
        left=$((left - 1))
        [ $left -gt 0 ] && kill -0 $! 2>/dev/null || { cat "$scratch/serve.log"; return 1; }
        sleep 0.1
    done
}
# One line of a fence, found at a place.
try() {
    local place=$1 line=$2 expected=0 code
    case $line in
    *"# code "*) expected=${line##*# code } ;;
    esac
    if [ "$(echo ${line%%#*})" = "tenuto serve" ]; then
        serve
        code=$?
    else
        timeout 60 bash -c "$line" >"$scratch/out" 2>&1 </dev/null
        code=$?
    fi
    ran=$((ran + 1))
    if [ "$code" = "$expected" ]; then
        echo "ok: $place: $line"
    else
        failed=$((failed + 1))
        echo "FAILED: $place: $line: code $code, not $expected"
        cat "$scratch/out" 2>/dev/null
    fi
}
read_document() {
    local name number=0 kind= reason= line
    name=$(basename "$1")
    while IFS= read -r line; do
        number=$((number + 1))
        case $kind:$line in
        ':```sh')
            kind=sh
            [ -z "$reason" ] || { kind=text; echo "not run: $name:$number: $reason"; }
            reason=
            ;;
        ':```toml') kind=toml ;;
        ':```'*) kind=text ;;
        ':<!-- not run: '*) reason=${line#<!-- not run: } && reason=${reason% -->} ;;
        *':```') kind= ;;
        'toml:# /etc/tenuto/tenuto.toml')
            kind=file
            : >/etc/tenuto/tenuto.toml
            ;;
        file:*) echo "$line" >>/etc/tenuto/tenuto.toml ;;
        sh: | 'sh:#'*) ;;
        sh:*) try "$name:$number" "$line" ;;
        ?*:*) ;;
        *) [ -z "$line" ] || reason= ;;
        esac
    done <"$1"
}
for document in "${documents[@]}"; do
    read_document "$document"
done
echo "$ran commands, $failed failed"
[ "$failed" = 0 ]
